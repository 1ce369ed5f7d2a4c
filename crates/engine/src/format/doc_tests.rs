//! `docs/format.md` names the same numbers as the code.

use super::{batch, checkpoint, class, record, superblock};

#[test]
fn the_format_document_agrees_with_the_code() {
    let text = include_str!("../../../../docs/format.md");
    let facts: &[(&str, u64)] = &[
        ("Format version", superblock::FORMAT_VERSION.into()),
        ("Segment 0 begins at", superblock::DATA_START),
        ("Smallest segment", superblock::SEGMENT_BYTES_MIN),
        ("Largest segment", superblock::SEGMENT_BYTES_MAX),
        ("Most segments", superblock::SEGMENTS_MAX),
        ("Superblock fixed fields", superblock::FIXED_BYTES as u64),
        ("Most checkpoint segments", superblock::CHECKPOINT_SEGMENTS_MAX as u64),
        ("Slab classes", class::CLASSES as u64),
        ("Batch header", batch::HEADER_BYTES as u64),
        ("Largest batch", batch::BATCH_BYTES_MAX as u64),
        ("Put record before attributes", record::PUT_FIXED_BYTES as u64),
        ("Delete record", record::DELETE_BYTES as u64),
        ("Next record", record::NEXT_BYTES as u64),
        ("Rename record before its put record", record::RENAME_FIXED_BYTES as u64),
        ("Patch record before its put record", record::PATCH_FIXED_BYTES as u64),
        ("Most bytes of a patch", record::PATCH_BYTES_MAX as u64),
        ("Largest put record", record::PUT_BYTES_MAX as u64),
        ("Largest record", record::RECORD_BYTES_MAX as u64),
        ("Checkpoint block header", checkpoint::HEADER_BYTES as u64),
        ("Largest checkpoint block", checkpoint::BLOCK_BYTES_MAX),
        ("Kind of put", record::KIND_PUT.into()),
        ("Kind of delete", record::KIND_DELETE.into()),
        ("Kind of next", record::KIND_NEXT.into()),
        ("Kind of rename", record::KIND_RENAME.into()),
        ("Kind of patch", record::KIND_PATCH.into()),
        ("Kind of rename of a patched chunk", record::KIND_RENAME_PATCHED.into()),
        ("Segment of a chunk without bytes", record::SEGMENT_NOWHERE.into()),
        ("Flag evictable", record::FLAG_EVICTABLE.into()),
        ("Flag pinned", record::FLAG_PINNED.into()),
        ("Piece", millpond_types::limits::PIECE_BYTES as u64),
    ];
    for (name, value) in facts {
        let row = format!("| {name} | {value} |");
        assert!(text.contains(&row), "docs/format.md lacks `{row}`");
    }
    for magic in
        [&superblock::MAGIC[..], &batch::MAGIC.to_le_bytes(), &checkpoint::MAGIC.to_le_bytes()]
    {
        let magic = String::from_utf8_lossy(magic);
        assert!(text.contains(&format!("`{magic}`")), "docs/format.md lacks the magic {magic}");
    }
    let page = golden_superblock();
    let crc = crc32c::crc32c(&page);
    let row = format!("| Checksum of the sample superblock | {crc} |");
    assert!(text.contains(&row), "the superblock's encoding changed: {row}");
}

/// The page of a fixed superblock: changes when the encoding does.
fn golden_superblock() -> Vec<u8> {
    let mut page = vec![0; 4096];
    superblock::tests::sample().encode(&mut page);
    page
}
