//! Tests of the harness: build errors, process cleanup, the control plane's authorization, manifests and
//! documents, and metrics compared with the Go sidecar's.

/// Defines the function `trials`, which returns a trial of each function, and those of submodules.
macro_rules! trials {
    {$area:literal: $($test:ident),+ $(,)? $(; $($module:ident),+)?} => {
        pub(crate) fn trials(harness: &std::sync::Arc<$crate::Harness>) -> Vec<libtest_mimic::Trial> {
            std::iter::empty()
                $(.chain([$crate::trial(harness, concat!($area, "::", stringify!($test)), $test)]))+
                $($(.chain($module::trials(harness)))+)?
                .collect()
        }
    };
}

mod cluster;
mod conform;
mod deploy;
mod documents;
mod guide;
mod kubectl;
mod loop_devices;
mod metrics;
mod process;
mod recipes;
mod toolchain;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use csi_e2e::cluster::{Backend, Cluster};
use csi_e2e::control_plane::Options;
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};

/// Shared state of the tests: one run, and a lazily started control plane.
struct Harness {
    runtime: Runtime,
    run: Arc<Run>,
    toolchain: Toolchain,
    /// Started by the first test that needs it, or the error of that start.
    cluster: OnceCell<Result<Cluster, String>>,
    /// Write-locked by a test that restarts or kills components of the control plane, read-locked by those that need it to run.
    control_plane_lock: RwLock<()>,
}

fn main() -> Result<ExitCode> {
    reaper_main_if_requested();
    process::victim_main_if_requested()?;
    let arguments = Arguments::from_args();
    let run = Run::start()?;
    let harness = Arc::new(Harness {
        runtime: Runtime::new()?,
        toolchain: Toolchain::new(&run, Settings::of_test()),
        run,
        cluster: OnceCell::new(),
        control_plane_lock: RwLock::new(()),
    });
    let trials = toolchain::trials(&harness)
        .into_iter()
        .chain(process::trials(&harness))
        .chain(loop_devices::trials(&harness))
        .chain(cluster::trials(&harness))
        .chain(conform::trials(&harness))
        .chain(deploy::trials(&harness))
        .chain(documents::trials(&harness))
        .chain(guide::trials(&harness))
        .chain(kubectl::trials(&harness))
        .chain(recipes::trials(&harness))
        .chain(metrics::trials(&harness));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    harness.runtime.block_on(async {
        if let Some(Ok(cluster)) = harness.cluster.get() {
            cluster.stop().await?;
        }
        harness.run.finish().await
    })?;
    Ok(conclusion.exit_code())
}

impl Harness {
    async fn cluster(&self) -> Result<&Cluster> {
        self.toolchain.settings().go()?;
        let start = || async {
            let backend = Backend::ControlPlane(Options {
                audit: true,
                ..Options::default()
            });
            let started = Cluster::start(&self.run, &self.toolchain, backend).await;
            started.map_err(|error| format!("{error:#}"))
        };
        self.cluster
            .get_or_init(start)
            .await
            .as_ref()
            .map_err(|reason| anyhow!("{reason}"))
    }
}

fn trial<F>(harness: &Arc<Harness>, name: &str, test: fn(Arc<Harness>) -> F) -> Trial
where
    F: Future<Output = Result<()>> + 'static,
{
    let harness = Arc::clone(harness);
    verdict::trial(name, &[], move || {
        harness.runtime.block_on(test(Arc::clone(&harness)))
    })
}
