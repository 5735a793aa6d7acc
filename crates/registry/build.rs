//! Generates Rust from `proto/` with a compiler written in Rust, so that no `protoc` is needed.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let described = protox::compile(
        ["kingpost/registry/v1/registry.proto", "polaris/polaris.proto", "polaris/config.proto", "nacos/nacos.proto"],
        ["proto"],
    )?;
    // The descriptors that the reflection service returns.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("described.bin"), described.encode_to_vec())?;
    tonic_build::configure().build_client(false).build_transport(false).compile_fds(described)?;

    let described = protox::compile(
        [
            "envoy/service/discovery/v3/discovery.proto",
            "envoy/service/endpoint/v3/eds.proto",
            "envoy/config/endpoint/v3/endpoint.proto",
            "envoy/config/cluster/v3/cluster.proto",
            "envoy/config/listener/v3/listener.proto",
            "envoy/config/route/v3/route.proto",
            "envoy/extensions/filters/http/router/v3/router.proto",
            "envoy/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto",
        ],
        ["proto/xds"],
    )?;
    std::fs::write(out.join("described_xds.bin"), described.encode_to_vec())?;
    tonic_build::configure()
        .build_client(false)
        .build_transport(false)
        // Our type holds bytes that many streams share.
        .extern_path(".google.protobuf.Any", "crate::api::xds::Resource")
        .include_file("xds.rs")
        .compile_fds(described)?;
    Ok(())
}
