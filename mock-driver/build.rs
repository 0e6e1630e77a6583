//! Compiles `proto/legacy.proto` with protox, on top of csi-proto's types.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/legacy.proto");
    println!("cargo::rerun-if-changed=../proto/csi/csi.proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo must set OUT_DIR for build scripts")?);
    let mut compiler = protox::Compiler::new(["proto", "../proto"])?;
    compiler.open_file("legacy.proto")?;
    fs::write(out.join("legacy.binpb"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .extern_path(".csi.v1", "::csi_proto::v1")
        .compile_fds(compiler.include_imports(true).file_descriptor_set())?;
    Ok(())
}
