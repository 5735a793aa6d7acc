//! Turns `proto/` into Rust, by a compiler that is itself in Rust: nothing needs `protoc`.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let described = protox::compile(
        ["kingpost/registry/v1/registry.proto", "polaris/polaris.proto", "nacos/nacos.proto"],
        ["proto"],
    )?;
    // What reflection tells.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("described.bin"), described.encode_to_vec())?;
    tonic_build::configure().build_client(false).build_transport(false).compile_fds(described)?;
    Ok(())
}
