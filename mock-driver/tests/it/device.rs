//! The devices of volumes, where they are and where they lead to.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use csi_mock_driver::device::{Device, Devices, Error, Kind, Trouble};

use crate::privilege;

fn mk_disk(directory: &Path, name: &str) -> PathBuf {
    let disk = directory.join(name);
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    disk
}

/// Devices that go with the test, also one that fails.
struct Gone(Devices);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.retain(|_| false).ok();
    }
}

impl std::ops::Deref for Gone {
    type Target = Devices;

    fn deref(&self) -> &Devices {
        &self.0
    }
}

/// Past the page cache, which takes everything.
fn write_to(device: &Device) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(&device.path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 0)?;
    file.sync_all()
}

/// The rules that both kinds of devices obey.
fn obeys_the_rules(kind: Kind) {
    let directory = tempfile::tempdir().unwrap();
    let (disk, other) = (
        mk_disk(directory.path(), "disk"),
        mk_disk(directory.path(), "other"),
    );
    let devices = Gone(Devices::within(kind, directory.path().join("devices")));

    assert_eq!(devices.find("1", &disk).unwrap(), None);
    devices.detach("1", &disk).unwrap();
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    assert_eq!(device.bytes, 1 << 20);
    devices.attach("1", &disk, true).unwrap();
    assert_eq!(
        devices.find("1", &disk).unwrap().unwrap(),
        device,
        "a repeat changes nothing"
    );
    devices.attach("2", &other, true).unwrap();
    assert_ne!(devices.find("2", &other).unwrap().unwrap().path, device.path);

    let wrong = devices.find("1", &other).unwrap_err();
    assert!(matches!(wrong, Error::Wrong { .. }), "{wrong}");
    devices.trouble("1", Some(Trouble::Absent));
    assert_eq!(devices.find("1", &disk).unwrap(), None);
    devices.trouble("1", Some(Trouble::Wrong));
    devices.find("1", &disk).unwrap_err();
    devices.trouble("1", None);

    fs::File::options()
        .write(true)
        .open(&disk)
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    devices.refresh(&device).unwrap();
    assert_eq!(devices.find("1", &disk).unwrap().unwrap().bytes, 3 << 20);

    devices.detach("1", &disk).unwrap();
    assert_eq!(devices.find("1", &disk).unwrap(), None);
    assert!(!devices.link("1").unwrap().is_symlink());
    devices.detach("1", &disk).unwrap();

    // A crash between the two steps of attaching: the pending link is there, the device is not.
    symlink(&device.path, directory.path().join("devices/.csi-mock-3")).unwrap();
    devices.attach("3", &disk, true).unwrap();
    assert_eq!(devices.serials().unwrap().len(), 2);
    devices.retain(|serial| serial == "2").unwrap();
    assert_eq!(devices.serials().unwrap(), ["2"]);
    devices.retain(|_| false).unwrap();
    assert_eq!(devices.serials().unwrap(), Vec::<String>::new());
}

#[test]
fn emulated_devices_obey_the_rules() {
    obeys_the_rules(Kind::Emulated);
}

#[test]
fn loop_devices_obey_the_rules() {
    if !privilege::is_there() {
        return;
    }
    obeys_the_rules(Kind::Loop);
}

#[test]
fn loop_device_for_reading_takes_no_writes_and_stale_links_are_replaced() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = mk_disk(directory.path(), "disk");
    let devices = Gone(Devices::within(Kind::Loop, directory.path().join("devices")));
    devices.attach("1", &disk, false).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    assert!(write_to(&device).is_err());
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    write_to(&device).unwrap();

    // Somebody freed the device behind our back, as a reboot does.
    let freed = Command::new("losetup").arg("--detach").arg(&device.path).status();
    assert!(freed.unwrap().success());
    let gone = devices.find("1", &disk).unwrap_err();
    assert!(matches!(gone, Error::Wrong { .. }), "{gone}");
    devices.attach("1", &disk, true).unwrap();
    devices.find("1", &disk).unwrap().unwrap();
    devices.detach("1", &disk).unwrap();
}
