//! The reaper detaches the loop devices of a run, also those whose backing files were deleted, and no others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::{Run, stdout_of_blocking};
use csi_e2e::wait::{self, Progress};
use tokio::sync::Mutex;
use verdict::Requirement;

use crate::Harness;

/// Timeout; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(20);
/// Held by each trial, because a trial that attaches any free device may take the one that another trial attaches again.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A loop device of a test. Dropping it detaches it, if it is still the same.
struct Device {
    path: PathBuf,
    diskseq: String,
}

trials! { "loop_devices":
    detaches_device_of_deleted_file,
    detaches_device_of_deleted_file_in_another_mount_namespace,
    keeps_device_that_reuses_a_recorded_name,
}

async fn detaches_device_of_deleted_file(_: Arc<Harness>) -> Result<()> {
    detaches_device(Device::attach).await
}

async fn detaches_device_of_deleted_file_in_another_mount_namespace(_: Arc<Harness>) -> Result<()> {
    detaches_device(Device::attach_in_other_namespace).await
}

async fn detaches_device(attach: fn(&Path) -> Result<Device>) -> Result<()> {
    for requirement in [Requirement::LoopDevices, Requirement::Program("unshare")] {
        requirement.check()?;
    }
    let _only = ONE_AT_A_TIME.lock().await;
    let run = Run::start()?;
    let file = backing_file(run.dir())?;
    let device = attach(&file)?;
    recorded(&run, &device).await?;
    fs::remove_file(&file).context("delete the backing file")?;
    run.finish().await?;
    device
        .wait_until_detached()
        .await
        .context("the device outlives the run")
}

async fn keeps_device_that_reuses_a_recorded_name(_: Arc<Harness>) -> Result<()> {
    for requirement in [Requirement::LoopDevices, Requirement::Program("unshare")] {
        requirement.check()?;
    }
    let _only = ONE_AT_A_TIME.lock().await;
    let run = Run::start()?;
    let file = backing_file(run.dir())?;
    let first = Device::attach(&file)?;
    recorded(&run, &first).await?;
    let name = first.path.clone();
    first.detach().await?;
    let elsewhere = tempfile::tempdir()?;
    let file = backing_file(elsewhere.path())?;
    let second = Device::attach_as(&name, &file).await?;
    fs::remove_file(&file).context("delete the backing file")?;
    run.finish().await?;
    ensure!(
        second.is_attached(),
        "the reaper detached {}, which another process had attached since",
        name.display()
    );
    Ok(())
}

/// Waits until the reaper has recorded the device.
async fn recorded(run: &Run, device: &Device) -> Result<()> {
    let wanted = format!("{{\"diskseq\":{},", device.diskseq);
    let what = format!("{} to be recorded", device.path.display());
    wait::poll(DEADLINE, &what, || async {
        let record = fs::read_to_string(run.dir().join("loop-devices.json")).unwrap_or_default();
        Ok(Progress::of(record.contains(&wanted), || record.clone()))
    })
    .await
}

fn backing_file(dir: &Path) -> Result<PathBuf> {
    let path = dir.join("volume.img");
    let file = fs::File::create(&path).context("create the backing file")?;
    file.set_len(1 << 20).context("size the backing file")?;
    Ok(path)
}

// === impl Device ===

impl Device {
    fn attach(file: &Path) -> Result<Self> {
        Self::from_output(verdict::command("losetup").args(["--find", "--show"]).arg(file))
    }

    /// Another process may have the device for a moment.
    async fn attach_as(name: &Path, file: &Path) -> Result<Self> {
        let what = format!("{} to be free", name.display());
        wait::poll(DEADLINE, &what, || async {
            match stdout_of_blocking(verdict::command("losetup").arg(name).arg(file)) {
                Ok(_) => Ok(Progress::Reached(())),
                Err(error) if format!("{error:#}").contains("busy") => {
                    Ok(Progress::Pending(format!("{error:#}")))
                }
                Err(error) => Err(error),
            }
        })
        .await?;
        Self::named(name.to_owned())
    }

    /// sysfs shows the backing file's path in the namespace, outside of the run's directory.
    fn attach_in_other_namespace(file: &Path) -> Result<Self> {
        let dir = file.parent().context("a file has a directory")?;
        let script = "mount --bind \"$1\" /mnt && losetup --find --show /mnt/volume.img";
        let mut command = verdict::command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(dir);
        Self::from_output(&mut command)
    }

    fn from_output(command: &mut Command) -> Result<Self> {
        Self::named(PathBuf::from(stdout_of_blocking(command)?.trim()))
    }

    fn named(path: PathBuf) -> Result<Self> {
        let diskseq = diskseq(&path).context("a loop device has a diskseq")?;
        Ok(Self { path, diskseq })
    }

    async fn detach(&self) -> Result<()> {
        stdout_of_blocking(verdict::command("losetup").arg("--detach").arg(&self.path))?;
        self.wait_until_detached().await
    }

    /// The kernel postpones a detach while another process has the device open.
    async fn wait_until_detached(&self) -> Result<()> {
        let what = format!("{} to be detached", self.path.display());
        wait::poll(DEADLINE, &what, || async {
            Ok(Progress::of(!self.is_attached(), || {
                "it has a backing file".to_owned()
            }))
        })
        .await
    }

    fn is_attached(&self) -> bool {
        sysfs(&self.path).join("loop/backing_file").exists()
            && diskseq(&self.path).as_ref() == Some(&self.diskseq)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_attached() {
            drop(stdout_of_blocking(
                verdict::command("losetup").arg("--detach").arg(&self.path),
            ));
        }
    }
}

// === functions ===

fn sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

fn diskseq(device: &Path) -> Option<String> {
    let text = fs::read_to_string(sysfs(device).join("diskseq")).ok()?;
    Some(text.trim().to_owned())
}
