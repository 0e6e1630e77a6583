//! Compares every name and number of the hand-written csi.proto with the official one, which is in the Go
//! module `github.com/container-storage-interface/spec`, and the embedded API server's table of Kubernetes' types with
//! Kubernetes' sources.

mod change;
mod facts;
mod kubernetes;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use csi_e2e::toolchain::csi_descriptors;
use libtest_mimic::Arguments;
use prost_reflect::{DescriptorPool, FileDescriptor};
use protox::{
    Compiler,
    file::{ChainFileResolver, File, FileResolver, GoogleFileResolver},
};
use verdict::Requirement::RealComponents;
use verdict::trial;

use crate::facts::Facts;

const CSI_PROTO: &str = "csi/csi.proto";
const SOURCE: &str = include_str!("../../../proto/csi/csi.proto");

/// Minimum number of names in the comparison: with two empty files it would succeed, too.
const FEWEST_NAMES: usize = 500;

/// A csi.proto in memory.
struct InMemory(String);

impl FileResolver for InMemory {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        if name == CSI_PROTO {
            File::from_source(name, &self.0)
        } else {
            Err(protox::Error::file_not_found(name))
        }
    }
}

fn main() -> ExitCode {
    let mut trials: Vec<_> = change::trials(SOURCE).collect();
    trials.extend([
        trial(
            "built descriptors are those of csi.proto",
            &[],
            built_matches_source,
        ),
        trial(
            "csi.proto matches the official one",
            &[RealComponents],
            proto_matches_official,
        ),
        trial(
            "table of Kubernetes' types matches the official sources",
            &[RealComponents],
            kubernetes::table_matches_official,
        ),
    ]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn proto_matches_official() -> Result<()> {
    let ours = ours()?;
    let official = official(&ours, &csi_descriptors()?)?;
    let (ours, official) = (Facts::of(&ours), Facts::of(&official));
    let differences = without_volume_condition(Facts::differences(&ours, &official))?;
    ensure!(
        differences.is_empty(),
        "proto/csi/csi.proto differs from the official one in {} places:\n{}",
        differences.len(),
        differences.join("\n"),
    );
    ensure!(
        ours.len() >= FEWEST_NAMES,
        "only {} names were compared",
        ours.len()
    );
    Ok(())
}

fn built_matches_source() -> Result<()> {
    let differences = Facts::differences(&Facts::of(&ours()?), &Facts::of(&compile(SOURCE)?));
    let differences = without_volume_condition(differences)?;
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// The differences without those that proto/build.rs makes: the condition of CSI before 1.13, under numbers that 1.13 reserves.
fn without_volume_condition(mut differences: Vec<String>) -> Result<Vec<String>> {
    for name in [
        "field csi.v1.ControllerGetVolumeResponse.VolumeStatus.volume_condition: only ours has it: number 2,",
        "field csi.v1.ListVolumesResponse.VolumeStatus.volume_condition: only ours has it: number 2,",
        "field csi.v1.NodeGetVolumeStatsResponse.volume_condition: only ours has it: number 2,",
        "field csi.v1.VolumeCondition.abnormal: only ours has it: number 1,",
        "field csi.v1.VolumeCondition.message: only ours has it: number 2,",
        "message csi.v1.ControllerGetVolumeResponse.VolumeStatus: ours says reserved [] []",
        "message csi.v1.ListVolumesResponse.VolumeStatus: ours says reserved [] []",
        "message csi.v1.NodeGetVolumeStatsResponse: ours says reserved [] []",
        "message csi.v1.VolumeCondition: only ours has it",
    ] {
        let known = differences
            .iter()
            .position(|difference| difference.starts_with(name));
        let known = known.with_context(|| format!("proto/build.rs does not add: {name}"))?;
        differences.remove(known);
    }
    Ok(differences)
}

fn ours() -> Result<FileDescriptor> {
    let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET)?;
    pool.get_file_by_name(CSI_PROTO)
        .context("csi-proto's descriptors must hold csi.proto")
}

/// The official file from a serialized `FileDescriptorProto`. Its imports are resolved with ours.
fn official(ours: &FileDescriptor, serialised: &[u8]) -> Result<FileDescriptor> {
    let mut pool = DescriptorPool::new();
    for import in ours
        .parent_pool()
        .files()
        .filter(|file| file.package_name() == "google.protobuf")
    {
        pool.decode_file_descriptor_proto(import.encode_to_vec().as_slice())?;
    }
    pool.decode_file_descriptor_proto(serialised)
        .context("understand what csi-descriptors printed")?;
    pool.files()
        .find(|file| file.package_name() == "csi.v1")
        .context("csi-descriptors must print csi.v1")
}

fn compile(source: &str) -> Result<FileDescriptor> {
    let mut resolver = ChainFileResolver::new();
    resolver.add(InMemory(source.to_owned()));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).open_file(CSI_PROTO)?;
    compiler
        .descriptor_pool()
        .get_file_by_name(CSI_PROTO)
        .context("protox must keep the file's name")
}
