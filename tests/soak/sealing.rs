//! What encryption costs: processor time of one part, written and read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use oncegate::entropy::Entropy;
use oncegate::operation::{OperationId, Receipt};
use oncegate::sealing_key::SealingKey;
use oncegate::store::Sealer;
use oncegate::store::record::{decode_part, encode_part};

const ID: OperationId = OperationId::from_bytes([7; 20]);

#[test]
fn the_cost_of_sealing() {
    let entropy = Entropy::system().unwrap();
    let key = SealingKey::new(entropy.bytes());
    let sealers = [("plain", Sealer::none()), ("sealed", Sealer::new(&[key], "shop", entropy))];
    for size in [1 << 10, 100 << 10] {
        for (name, sealer) in &sealers {
            let (write, read) = cost(sealer, size);
            println!("{size:>7} bytes, {name:>6}: write {write:>9.1?}, read {read:>9.1?}");
        }
    }
}

fn cost(sealer: &Sealer, size: usize) -> (Duration, Duration) {
    let receipt = Receipt { status: 201, headers: Arc::default(), body: Bytes::from(vec![b'x'; size]) };
    let rounds = u32::try_from((64 << 20) / size).unwrap().min(20_000);
    let begun = Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(encode_part(sealer, ID, &receipt).unwrap());
    }
    let write = begun.elapsed() / rounds;
    let stored = encode_part(sealer, ID, &receipt).unwrap();
    let begun = Instant::now();
    for _ in 0..rounds {
        assert_eq!(decode_part::<Receipt>(sealer, ID, &stored).unwrap().body.len(), size);
    }
    (write, begun.elapsed() / rounds)
}
