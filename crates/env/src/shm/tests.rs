use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_types::{Crc32c, Tick};

use super::{
    RING_HEADER, RingConsumer, RingError, RingProducer, RingWake, ShmAccess, ShmRegion,
    copy_checksummed,
};
use crate::clock::RealClock;
use crate::net::RawSegment;
use crate::rng::Rng;
use crate::rt::tests::on_both;
use crate::rt::thread;
use crate::sys::EventFd;

const CAPACITY: u32 = 1024;
const AT: u64 = 64;

fn ring() -> (ShmRegion, RingProducer, RingConsumer) {
    let region = ShmRegion::create("test", 4096).unwrap();
    let producer = RingProducer::new(region.clone(), AT, CAPACITY, RingWake::Futex).unwrap();
    let consumer = RingConsumer::new(region.clone(), AT, CAPACITY, RingWake::Futex).unwrap();
    (region, producer, consumer)
}

fn soon() -> Tick {
    RealClock::tick().plus(Duration::from_secs(20))
}

#[test]
fn records_come_out_as_they_went_in() {
    let (_region, mut producer, mut consumer) = ring();
    let mut record = Vec::new();
    assert!(!consumer.try_pop(&mut record).unwrap());
    for round in 0..1000u32 {
        let bytes = vec![round.to_le_bytes()[0]; (round * 37 % 300) as usize];
        let (left, right) = bytes.split_at(bytes.len() / 2);
        assert!(producer.try_push(&[left, right]).unwrap());
        assert!(consumer.has_record());
        assert!(consumer.try_pop(&mut record).unwrap());
        assert_eq!(record, bytes, "round {round}");
    }
}

#[test]
fn a_full_ring_says_so_and_goes_on() {
    let (_region, mut producer, mut consumer) = ring();
    let mut pushed = 0;
    while producer.try_push(&[&[9; 100]]).unwrap() {
        pushed += 1;
    }
    assert_eq!(pushed, 1024 / 104);
    assert!(!producer.push(&[&[9; 100]], Tick(0)).unwrap());
    let mut record = Vec::new();
    assert!(consumer.try_pop(&mut record).unwrap());
    assert!(producer.try_push(&[&[9; 100]]).unwrap());
    let longest = vec![1; producer.record_max()];
    let error = producer.try_push(&[&longest, &[1]]).unwrap_err();
    assert!(matches!(error, RingError::TooLong { .. }));
    while consumer.try_pop(&mut record).unwrap() {}
    assert!(producer.try_push(&[&longest]).unwrap());
    assert!(producer.try_push(&[&longest]).unwrap());
}

#[test]
fn blocked_threads_wake_each_other() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let (_region, mut producer, mut consumer) = ring();
        let sender = thread("sender", move || {
            for number in 0..20_000u32 {
                assert!(producer.push(&[&number.to_le_bytes()], soon()).unwrap());
            }
        })
        .unwrap();
        let mut record = Vec::new();
        for expected in 0..20_000u32 {
            assert!(consumer.pop(&mut record, spin, soon()).unwrap(), "stuck at {expected}");
            assert_eq!(record, expected.to_le_bytes());
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_core_and_a_blocking_client_talk() {
    on_both(async |_| {
        let region = ShmRegion::create("test", 1 << 16).unwrap();
        let event = EventFd::new().unwrap();
        let client_event =
            || RingWake::Event(EventFd::from_owned(event.as_fd().try_clone_to_owned().unwrap()));
        let replies_at = 2048;
        let mut requests = RingConsumer::new(region.clone(), 0, 1024, RingWake::Futex).unwrap();
        let mut replies =
            RingProducer::new(region.clone(), replies_at, 256, RingWake::Futex).unwrap();
        let mut to_server = RingProducer::new(region.clone(), 0, 1024, client_event()).unwrap();
        let mut from_server = RingConsumer::new(region, replies_at, 256, client_event()).unwrap();
        let client = thread("client", move || {
            let mut record = Vec::new();
            for round in 0..500u32 {
                // A burst, then its answers: both rings fill up.
                for number in 0..20u32 {
                    let number = (round * 20 + number).to_le_bytes();
                    assert!(to_server.push(&[&number], soon()).unwrap());
                }
                for number in 0..20u32 {
                    assert!(from_server.pop(&mut record, Duration::ZERO, soon()).unwrap());
                    assert_eq!(record, (round * 20 + number).to_le_bytes());
                }
            }
        })
        .unwrap();
        let mut record = Vec::new();
        for _ in 0..10_000 {
            while !requests.try_pop(&mut record).unwrap() {
                requests.wait_record(&event).await.unwrap();
            }
            while !replies.try_push(&[&record]).unwrap() {
                replies.wait_room(&event).await.unwrap();
            }
        }
        client.join().unwrap();
    });
}

#[test]
fn waiting_ends_at_the_deadline() {
    let (_region, _producer, mut consumer) = ring();
    let deadline = RealClock::tick().plus(Duration::from_millis(10));
    assert!(!consumer.pop(&mut Vec::new(), Duration::ZERO, deadline).unwrap());
    assert!(RealClock::tick() >= deadline);
}

#[test]
fn a_hostile_peer_gets_an_error_and_never_a_panic() {
    let mut rng = Rng::new(7);
    let mut corrupt = 0;
    for _ in 0..5_000 {
        let (region, mut producer, mut consumer) = ring();
        producer.try_push(&[b"first"]).unwrap();
        for _ in 0..4 {
            // Counters, flags, and the start of the records.
            let places = [0, 64, 128, 192, 256, 264];
            let at = AT + places[rng.index(places.len())];
            #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
            let value = if rng.chance(1, 2) { rng.next_u64() } else { rng.below(1100) } as u32;
            region.word(at).unwrap().store(value, Ordering::SeqCst);
        }
        let mut record = Vec::new();
        for turn in 0.. {
            assert!(turn <= 1024 / 8, "the consumer goes on for ever");
            match consumer.try_pop(&mut record) {
                Ok(true) => assert!(record.len() <= CAPACITY as usize),
                Ok(false) => break,
                Err(RingError::Corrupt(_)) => {
                    corrupt += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let _ = producer.try_push(&[b"more"]);
        let _ = consumer.pop(&mut record, Duration::ZERO, Tick(0));
    }
    assert!(corrupt > 1_000, "only {corrupt} rings were noticed");
}

#[test]
fn rings_lie_within_their_region() {
    let region = ShmRegion::create("test", 4096).unwrap();
    let make = |at, capacity| RingConsumer::new(region.clone(), at, capacity, RingWake::Futex);
    assert!(make(0, 2048).is_ok());
    assert!(make(4096 - RING_HEADER - 1024, 1024).is_ok());
    for (at, capacity) in
        [(0, 4096), (0, 1000), (0, 0), (8, 1024), (u64::MAX - 63, 1024), (3008, 1024)]
    {
        assert!(make(at, capacity).is_err(), "{at} {capacity}");
    }
    let copy = region.fd().try_clone_to_owned().unwrap();
    let fixed = ShmRegion::from_fd(copy, 4096, ShmAccess::ReadOnly).unwrap();
    assert!(RingConsumer::new(fixed.clone(), 0, 1024, RingWake::Futex).is_err());
    assert!(fixed.copy_in(0, b"x").is_err());
}

#[test]
fn copies_are_checked_and_bounded() {
    let region = ShmRegion::create("test", 1 << 20).unwrap();
    let mut bytes: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[1]).collect();
    let expected = Crc32c::of(&bytes);
    let (left, right) = bytes.split_at_mut(70_001);
    let parts = [left, right].map(|part| RawSegment { addr: part.as_mut_ptr(), len: part.len() });
    // SAFETY: the segments are the two parts.
    assert_eq!(unsafe { region.copy_in_raw(4096, &parts) }.unwrap(), expected);
    let (mut a, mut b) = (vec![0; 13], vec![0; 199_987]);
    let parts =
        [&mut a, &mut b].map(|part| RawSegment { addr: part.as_mut_ptr(), len: part.len() });
    // SAFETY: the segments are the two vectors.
    assert_eq!(unsafe { region.copy_out_raw(4096, &parts) }.unwrap(), expected);
    assert!([a.as_slice(), &b].concat() == bytes);
    let mut whole = vec![0; bytes.len()];
    assert_eq!(region.copy_out_checksummed(4096, &mut whole).unwrap(), expected);
    assert!(whole == bytes);
    // SAFETY: the segments are the two vectors.
    let crc = unsafe { copy_checksummed(&bytes[..100_000], &parts) };
    assert_eq!(crc, Crc32c::of(&bytes[..100_000]));
    assert!(region.copy_out((1 << 20) - 5, &mut [0; 6]).is_err());
    assert!(region.copy_out(u64::MAX, &mut [0; 6]).is_err());
    assert!(region.copy_in(1 << 20, b"x").is_err());
}

#[test]
fn a_received_file_must_be_sealed_and_of_the_announced_size() {
    let region = ShmRegion::create("test", 8192).unwrap();
    let copy = || region.fd().try_clone_to_owned().unwrap();
    let other = ShmRegion::from_fd(copy(), 8192, ShmAccess::ReadWrite).unwrap();
    region.copy_in(0, b"shared").unwrap();
    let mut seen = [0; 6];
    other.copy_out(0, &mut seen).unwrap();
    assert_eq!(&seen, b"shared");
    assert!(ShmRegion::from_fd(copy(), 8193, ShmAccess::ReadOnly).is_err());
    assert!(ShmRegion::from_fd(copy(), 0, ShmAccess::ReadOnly).is_err());
    let plain = crate::pool::create_memfd("plain", 4096).unwrap();
    let error = ShmRegion::from_fd(plain, 4096, ShmAccess::ReadOnly).unwrap_err();
    assert!(error.to_string().contains("sealed"), "{error}");
    let event = EventFd::new().unwrap();
    let event = event.as_fd().try_clone_to_owned().unwrap();
    assert!(ShmRegion::from_fd(event, 4096, ShmAccess::ReadOnly).is_err());
}

#[test]
fn an_event_is_taken_without_blocking_whatever_its_other_owner_does() {
    let event = EventFd::new().unwrap();
    // SAFETY: the descriptor is open, and the flags of an eventfd can be changed.
    let cleared = unsafe { libc::fcntl(event.as_fd().as_raw_fd(), libc::F_SETFL, 0) };
    assert_eq!(cleared, 0);
    assert!(!event.take());
    event.notify();
    assert!(event.take() && !event.take());
}

#[test]
fn memory_that_a_region_lends_is_out_of_its_own_reach() {
    let region = ShmRegion::create("test", 8192).unwrap();
    let other = region.fd().try_clone_to_owned().unwrap();
    let other = ShmRegion::from_fd(other, 8192, ShmAccess::ReadOnly).unwrap();
    let outside = [1; 16];
    assert_eq!(region.offset_of(&outside), None);
    assert!(other.lend(0).is_err(), "mapped for reading");
    assert!(region.lend(8192).is_err(), "behind the end");
    let mut rest = region.lend(4096).unwrap();
    assert!(region.lend(4096).is_err() && region.lend(0).is_err(), "lent once");
    let mut head = rest.split_to(100).unwrap();
    assert!(rest.split_to(4000).is_none());
    assert_eq!((head.len(), rest.len()), (100, 3996));
    assert_eq!(region.offset_of(&head), Some(4096));
    assert_eq!(region.offset_of(&rest[4..9]), Some(4200));
    head.fill(5);
    rest.fill(7);
    let mut seen = [0; 104];
    other.copy_out(4096, &mut seen).unwrap();
    assert_eq!((&seen[..100], &seen[100..]), (&[5; 100][..], &[7; 4][..]));
    region.copy_in(4000, &[1; 96]).unwrap();
    for at in [4001, 4096, 8000] {
        assert!(region.copy_in(at, &[1; 96]).is_err(), "{at}");
    }
    // The memory outlives the region's other handles.
    drop(region);
    assert!(rest.iter().all(|byte| *byte == 7));
}
