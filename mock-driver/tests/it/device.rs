//! Devices of volumes: paths, links and backing files.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use csi_mock_driver::fault::DeviceFault;
use csi_mock_driver::node::device::{Device, Devices, Error, Kind};

use rustix::process::Signal;
use verdict::Requirement;

use crate::privilege;
use crate::program::{Program, command};
use crate::server::{mk_publish, mk_unpublish};

fn mk_disk(directory: &Path, name: &str) -> PathBuf {
    let disk = directory.join(name);
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    disk
}

/// Detaches the devices when dropped, also if the test fails.
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

/// Bypasses the page cache, which accepts all writes.
fn write_to(device: &Device) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(&device.path)?;
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 0)?;
    file.sync_all()
}

/// The rules of both kinds of devices.
fn obeys_the_rules(kind: Kind) {
    let directory = tempfile::tempdir().unwrap();
    let (disk, other) = (
        mk_disk(directory.path(), "disk"),
        mk_disk(directory.path(), "other"),
    );
    let devices = Gone(Devices::within(kind, directory.path().join("devices")));

    assert!(devices.find("1", &disk).unwrap().is_none());
    devices.detach("1").unwrap();
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    assert_eq!(device.bytes, 1 << 20);
    // An open descriptor keeps the device from being freed.
    let device = device.path;
    devices.attach("1", &disk, true).unwrap();
    assert_eq!(
        devices.find("1", &disk).unwrap().unwrap().path,
        device,
        "a repeat changes nothing"
    );
    devices.attach("2", &other, true).unwrap();
    assert_ne!(devices.find("2", &other).unwrap().unwrap().path, device);

    let wrong = devices.find("1", &other).unwrap_err();
    assert!(matches!(wrong, Error::Wrong { .. }), "{wrong}");
    devices.set_fault("1", Some(DeviceFault::Absent));
    assert!(devices.find("1", &disk).unwrap().is_none());
    devices.set_fault("1", Some(DeviceFault::Wrong(String::new())));
    devices.find("1", &disk).unwrap_err();
    devices.set_fault("1", None);

    fs::File::options()
        .write(true)
        .open(&disk)
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    devices.refresh(&device).unwrap();
    assert_eq!(devices.find("1", &disk).unwrap().unwrap().bytes, 3 << 20);

    devices.detach("1").unwrap();
    assert!(devices.find("1", &disk).unwrap().is_none());
    assert!(!devices.link("1").unwrap().is_symlink());
    devices.detach("1").unwrap();

    // A crash between the two steps of attaching: the pending link is there, the device is not.
    symlink(&device, directory.path().join("devices/.csi-mock-3")).unwrap();
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
fn read_only_loop_device_rejects_writes_and_stale_links_are_replaced() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = mk_disk(directory.path(), "disk");
    let devices = Gone(Devices::within(Kind::Loop, directory.path().join("devices")));
    devices.attach("1", &disk, false).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    assert!(write_to(&device).is_err());
    drop(device);
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    write_to(&device).unwrap();
    let path = device.path.clone();
    drop(device);

    // Another process freed the device, like a reboot.
    losetup(&[Path::new("--detach"), &path]);
    // The kernel defers it while yet another process has the device open, for example to list all devices.
    let is_freed = (0..6_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        made_of(&path) != Some(file_numbers(&disk))
    });
    assert!(is_freed, "{} is not freed", path.display());
    let gone = devices.find("1", &disk).unwrap_err();
    assert!(matches!(gone, Error::Wrong { .. }), "{gone}");
    devices.attach("1", &disk, true).unwrap();
    devices.find("1", &disk).unwrap().unwrap();
    devices.detach("1").unwrap();
}

fn losetup(args: &[&Path]) -> String {
    let output = verdict::command("losetup").args(args).output().unwrap();
    assert!(output.status.success(), "losetup {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// [`file_numbers`] of the loop device's backing file; `None` if the device is free.
fn made_of(device: &Path) -> Option<String> {
    let columns = ["--list", "--noheadings", "--output", "BACK-MAJ:MIN,BACK-INO"].map(Path::new);
    let args = [&columns[..], &[device]].concat();
    let output = losetup(&args);
    let numbers: Vec<&str> = output.split_whitespace().collect();
    (numbers.len() == 2).then(|| numbers.join(" "))
}

#[test]
fn loop_device_is_not_reused_while_a_handle_is_open() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (disk, other) = (
        mk_disk(directory.path(), "disk"),
        mk_disk(directory.path(), "other"),
    );
    let devices = Gone(Devices::within(Kind::Loop, directory.path().join("devices")));
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    devices.detach("1").unwrap();
    devices.attach("2", &other, true).unwrap();
    let disk_numbers = file_numbers(&disk);
    assert_eq!(
        made_of(&device.path),
        Some(disk_numbers.clone()),
        "detached, and still the same disk"
    );
    let path = device.path.clone();
    drop(device);
    // A child process that is being started has a copy of the descriptor until its exec.
    assert!(
        (0..200).any(|_| made_of(&path) != Some(disk_numbers.clone())),
        "freed with its last descriptor"
    );
}

#[test]
fn loop_device_set_up_again_outlives_the_note_of_its_detachment() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = mk_disk(directory.path(), "disk");
    let links = directory.path().join("devices");
    let devices = Gone(Devices::within(Kind::Loop, links.clone()));
    let note_of = |device: &Device| {
        let name = device.path.file_name().unwrap().to_str().unwrap();
        links.join(format!(".detached-csi-mock-{name}"))
    };
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    devices.detach("1").unwrap();
    let file = fs::read_link(note_of(&device)).unwrap();
    drop(device);
    // Usually the kernel gives the same device again.
    devices.attach("1", &disk, true).unwrap();
    let device = devices.find("1", &disk).unwrap().unwrap();
    assert!(!note_of(&device).is_symlink());

    // As an earlier version left it.
    symlink(&file, note_of(&device)).unwrap();
    devices.retain(|_| true).unwrap();
    assert!(!note_of(&device).is_symlink());
    let path = device.path.clone();
    drop(device);
    assert_eq!(made_of(&path), Some(file_numbers(&disk)), "still attached");
}

/// Inode and device number of a file, which are unique while it is open.
fn file_numbers(file: &Path) -> String {
    let meta = fs::metadata(file).unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    format!("{major}:{minor} {}", meta.ino())
}

/// Attaches this device to a file; `false` if another process uses the device meanwhile.
fn take(device: &Path, file: &Path) -> bool {
    let output = verdict::command("losetup")
        .arg(device)
        .arg(file)
        .output()
        .unwrap();
    assert!(
        output.status.success()
            || made_of(device).is_some()
            || String::from_utf8_lossy(&output.stderr).contains("busy"),
        "{output:?}"
    );
    output.status.success()
}

#[test]
fn loop_device_of_another_process_is_not_detached() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (disk, foreign) = (
        mk_disk(directory.path(), "disk"),
        mk_disk(directory.path(), "foreign"),
    );
    let devices = Gone(Devices::within(Kind::Loop, directory.path().join("devices")));
    let takes_away: [&dyn Fn(); 2] = [&|| devices.retain(|_| false).unwrap(), &|| {
        devices.detach("1").unwrap()
    }];
    for take_away in takes_away {
        // A faster process may use the device first, but only briefly.
        let device = loop {
            devices.attach("1", &disk, true).unwrap();
            let device = devices.find("1", &disk).unwrap().unwrap().path;
            losetup(&[Path::new("--detach"), &device]);
            if take(&device, &foreign) {
                break device;
            }
        };
        take_away();
        let left = made_of(&device);
        losetup(&[Path::new("--detach"), &device]);
        assert_eq!(left, Some(file_numbers(&foreign)));
        assert_eq!(
            devices.serials().unwrap(),
            Vec::<String>::new(),
            "but its link is gone"
        );
    }
}

#[test]
fn loop_device_is_detached_although_its_file_was_renamed_or_removed() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (real, linked) = (directory.path().join("real"), directory.path().join("linked"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &linked).unwrap();
    let devices = Gone(Devices::within(Kind::Loop, linked.join("devices")));
    let takes_away: [&dyn Fn(); 2] = [&|| devices.retain(|_| false).unwrap(), &|| {
        devices.detach("1").unwrap()
    }];
    let fates: [&dyn Fn(&Path); 3] = [
        &|_| {},
        &|disk| fs::rename(disk, disk.with_file_name(".old-disk")).unwrap(),
        &|disk| fs::remove_file(disk).unwrap(),
    ];
    for take_away in takes_away {
        for fate in fates {
            let disk = mk_disk(&linked, "disk");
            let of_disk = file_numbers(&disk);
            let _held = fs::File::open(&disk).unwrap();
            devices.attach("1", &disk, true).unwrap();
            let device = devices.find("1", &disk).unwrap().unwrap().path;
            fate(&disk);
            take_away();
            // Another process may have reused the device's number since. The kernel frees a device when its last descriptor is
            // closed, and a child process that another test is starting has ours until its exec.
            let is_freed = || made_of(&device).as_ref() != Some(&of_disk);
            let freed = (0..1_000).any(|_| {
                is_freed() || {
                    thread::sleep(Duration::from_millis(10));
                    false
                }
            });
            assert!(freed, "{device:?}");
            assert_eq!(fs::read_dir(linked.join("devices")).unwrap().count(), 0);
        }
    }
}

/// Mounts a minimal `/dev`, like a container's, and executes the following program.
const BARE_DEV: &str = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/loop-control c 10 237 \
    && exec \"$0\" \"$@\"";

#[tokio::test]
async fn loop_device_without_a_file_in_dev_gets_one() {
    verdict::require!(Requirement::LoopDevices, Requirement::Program("unshare"));
    let directory = tempfile::tempdir().unwrap();
    let (socket, media) = (directory.path().join("csi.sock"), directory.path().join("media"));
    let driver = command(&socket);
    let mut bare = verdict::command("unshare");
    bare.args(["--mount", "--propagation=private", "sh", "-c", BARE_DEV])
        .arg(driver.get_program())
        .args(driver.get_args())
        .args(["--volumes=1", "--node-id=node-0", "--devices=loop"])
        .arg(format!("--media-dir={}", media.display()));
    let mut program = Program::run(bare, &socket).await;
    let mut controller = program.controller().await;
    let files = || {
        let dev = fs::read_dir(program.root().join("dev")).unwrap();
        let devices = dev.map(|entry| entry.unwrap()).filter(|entry| {
            let kind = entry.file_type().unwrap();
            kind.is_block_device()
        });
        devices.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    assert!(files().is_empty(), "a bare /dev: {:?}", files());

    let attached = controller
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await;
    let links = media.join("devices/node-0");
    let made = fs::read_dir(&links).unwrap().find_map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let is_link = name.to_string_lossy().starts_with("csi-mock-");
        is_link.then(|| fs::read_link(entry.path()).unwrap())
    });
    let files = files();
    controller
        .controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
        .await
        .unwrap();
    program.signal(Signal::TERM);
    program.ended().await;

    attached.unwrap();
    let made = made.expect("the volume must have a device");
    assert!(files.contains(&made.file_name().unwrap().to_owned()), "{files:?}");
    assert!(
        files.len() > 1,
        "and one for kubelet, which attaches its own: {files:?}"
    );
    assert_eq!(fs::read_dir(links).unwrap().count(), 0);
}

#[test]
fn device_directory_is_locked_by_one_driver() {
    let directory = tempfile::tempdir().unwrap();
    let links = directory.path().join("devices");
    let mk_devices = || {
        let devices = Devices::within(Kind::Emulated, links.clone());
        devices.lock().map(|()| devices)
    };
    let first = mk_devices().unwrap();
    let disk = directory.path().join("disk");
    fs::write(&disk, "").unwrap();
    first.attach("a", &disk, true).unwrap();
    let refused = mk_devices().unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("--device-dir"), "{refused}");
    drop(first);
    // A child process that another test is starting has a copy of the lock until its exec.
    let second = loop {
        match mk_devices() {
            Err(Error::InUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    assert_eq!(second.serials().unwrap(), ["a"]);
}

#[test]
fn device_that_cannot_be_removed_keeps_no_other_one() {
    let directory = tempfile::tempdir().unwrap();
    let devices = Devices::within(Kind::Emulated, directory.path().join("devices"));
    for serial in ["a", "b", "c"] {
        let disk = directory.path().join(serial);
        fs::write(&disk, "").unwrap();
        devices.attach(serial, &disk, true).unwrap();
    }
    // A link cannot replace a directory.
    fs::create_dir(directory.path().join("devices/.csi-mock-a")).unwrap();
    devices.retain(|serial| serial == "c").unwrap_err();
    assert!(devices.link("a").unwrap().is_symlink());
    assert!(
        !devices.link("b").unwrap().is_symlink(),
        "not removed because of another one"
    );
    assert!(devices.link("c").unwrap().is_symlink());
}
