//! What the fuzz targets share: checks that hold for every decoder, and the seed corpus.
//!
//! A decoder must never panic, and what it accepts must survive encoding and decoding again:
//! otherwise two hosts could read the same bytes in two ways.

pub mod seeds;

/// Decodes `$data` as the message `$message` and checks that the value survives a round trip.
#[macro_export]
macro_rules! round_trip {
    ($message:ty, $data:expr) => {
        if let Ok(message) = <$message>::decode($data) {
            let again = <$message>::decode(&message.encode());
            assert_eq!(again.as_ref(), Ok(&message), "the value changed on a round trip");
        }
    };
}
