//! Writes the seed corpus to `seeds/`: `cargo run --example seeds` in `fuzz/`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (target, seeds) in millpond_fuzz::seeds::all() {
        let folder = root.join(target);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("{i:02}")), seed)?;
        }
    }
    println!("wrote {}", root.display());
    Ok(())
}
