//! Turns `proto/` into Rust, by a compiler that is itself in Rust: nothing needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let described = protox::compile(["pd.proto", "tikv.proto"], ["proto"])?;
    tonic_build::configure().build_server(false).build_transport(false).bytes(["."]).compile_fds(described)?;
    Ok(())
}
