//! Writes the seed corpus to `fuzz/seeds/`: `cargo run -p millpond-fuzz --example seeds`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
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
