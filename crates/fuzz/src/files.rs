//! Seeds of the messages about chunks of files.

use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion};
use millpond_types::wire::{
    ChunkBase, ChunkBases, ChunkChange, ChunkListReply, ChunkListRequest, ChunkReadRequest,
    ChunkStat, ChunkStatReply, ChunkStatRequest, ChunkUpdateRequest, ChunkWriteRequest, Cut,
    FileChunkInfo, ItemStatus, ItemTag, PlacedChunk, ReadPart, Tags, WritePart,
};
use millpond_types::{Ack, Crc32c, DataId, FileChunk};

use crate::seeds::Seeds;

fn placed(index: u32) -> PlacedChunk {
    PlacedChunk { chain: ChainId(3), chunk: FileChunk { data: DataId(1 << 40), index } }
}

fn bases() -> ChunkBases {
    let base = |data| ChunkBase { data: DataId(data), len: 4096 };
    ChunkBases::new(&[1, 2].map(base)).unwrap_or_default()
}

/// Tags of two chunks.
fn tags() -> Tags {
    let item =
        |sequence| ItemTag { channel: 1, sequence, chain: ChainId(3), issued: ChainVersion(7) };
    Tags { client: 5, items: [8, 9].map(item).to_vec() }
}

/// Seeds of the targets.
pub(crate) fn all() -> Vec<Seeds> {
    let read = |index| ReadPart { at: placed(index), offset: 4096, len: 4096, bases: bases() };
    let write = |index| WritePart { at: placed(index), offset: 9, len: 4096, crc: Crc32c(8) };
    let parts = [1, 2].map(write).to_vec();
    let arena = vec![4 << 20, 5 << 20];
    let writes = [(None, Vec::new()), (Some(tags()), Vec::new()), (Some(tags()), arena)].map(
        |(tags, arena)| {
            ChunkWriteRequest { ack: Ack::Disk, parts: parts.clone(), tags, arena }.encode()
        },
    );
    let cuts = vec![
        Cut { at: placed(1), change: ChunkChange::Cut(77) },
        Cut { at: placed(2), change: ChunkChange::Copy(bases()) },
    ];
    let updates = [None, Some(tags())]
        .map(|tags| ChunkUpdateRequest { ack: Ack::Memory, cuts: cuts.clone(), tags }.encode());
    let stat = ChunkStat { version: ChunkVersion(1 << 33), len: 4096 };
    let stats = vec![(ItemStatus::Ok, stat), (ItemStatus::Miss, ChunkStat::default())];
    let list = ChunkListRequest { limit: 1000, ..ChunkListRequest::default() };
    let some = ChunkListRequest {
        data: Some(DataId(9)),
        chain: Some(ChainId(3)),
        cursor: 1 << 56,
        limit: 7,
    };
    let chunks = vec![FileChunkInfo { at: placed(1), stat }];
    vec![
        (
            "wire_chunk_read_request",
            vec![ChunkReadRequest { parts: [1, 2].map(read).to_vec() }.encode()],
        ),
        ("wire_chunk_write_request", writes.to_vec()),
        ("wire_chunk_update_request", updates.to_vec()),
        (
            "wire_chunk_stat_request",
            vec![ChunkStatRequest { chunks: vec![placed(1), placed(2)] }.encode()],
        ),
        ("wire_chunk_stat_reply", vec![ChunkStatReply { items: stats }.encode()]),
        ("wire_chunk_list_request", vec![list.encode(), some.encode()]),
        ("wire_chunk_list_reply", vec![ChunkListReply { cursor: 1, chunks }.encode()]),
    ]
}
