//! Power loss: the disk at some time, without unflushed data.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_mock_driver::store::volume_files::{FileId, VolumeFiles};

use crate::privilege;

/// A filesystem on a separate disk, whose writeback interval is longer than a test.
struct Machine {
    disk: PathBuf,
    root: PathBuf,
}

// === impl Machine ===

impl Machine {
    fn start(directory: &Path) -> Self {
        let disk = directory.join("machine");
        fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        run("mkfs.ext4", &["-q".as_ref(), disk.as_ref()]);
        Self::boot(disk)
    }

    fn boot(disk: PathBuf) -> Self {
        let root = disk.with_extension("root");
        fs::create_dir(&root).unwrap();
        let options = "loop,commit=300";
        run(
            "mount",
            &["-o".as_ref(), options.as_ref(), disk.as_ref(), root.as_ref()],
        );
        Self { disk, root }
    }

    /// Another machine with a copy of this one's disk at this time.
    fn without_power(&self, name: &str) -> Self {
        let disk = self.disk.with_file_name(name);
        fs::copy(&self.disk, &disk).unwrap();
        Self::boot(disk)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A child process that another test is starting has copies of our descriptors until its exec.
        let is_unmounted = (0..250).any(|_| {
            let ended = verdict::command("umount").arg(&self.root).status();
            let is_done = ended.is_ok_and(|status| status.success());
            if !is_done {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_done
        });
        assert!(is_unmounted || std::thread::panicking());
    }
}

fn run(program: &str, args: &[&Path]) {
    let output = verdict::command(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// All files in a directory tree, with their contents.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_owned();
            if path.is_symlink() {
                let to = fs::read_link(&path).unwrap();
                all.insert(name, to.into_os_string().into_encoded_bytes());
            } else if path.is_dir() {
                all.insert(name, Vec::new());
                left.push(path);
            } else {
                all.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    all
}

#[tokio::test]
async fn finished_copy_of_files_and_disk_survives_a_loss_of_power() {
    if !privilege::is_there() {
        return;
    }
    // (case, number of directories with a file each)
    for (case, count) in [("few files", 3), ("many files", 200)] {
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine::start(directory.path());
        let media = VolumeFiles::kept(machine.root.join("media"));
        let (volume, snapshot) = (FileId::Volume("a".to_owned()), FileId::Snapshot("s".to_owned()));
        let disk = media.ensure(&volume, 1 << 20).await.unwrap();
        fs::write(&disk, [7; 1 << 20]).unwrap();
        let tree = media.tree(&volume).unwrap();
        for number in 0..count {
            let nested = tree.join(format!("{number}/nested"));
            fs::create_dir_all(&nested).unwrap();
            fs::write(nested.join("file"), vec![b'a'; 100 * (number + 1)]).unwrap();
        }
        symlink("0/nested/file", tree.join("link")).unwrap();
        fs::write(tree.with_file_name("filesystem"), "ext4").unwrap();
        let files = tree.parent().unwrap();
        let expected = contents(files);
        // The source was not flushed.
        let before = machine.without_power("before");
        let lost = before.root.join(files.strip_prefix(&machine.root).unwrap());
        assert!(!lost.exists(), "{case}: the machine must lose unflushed data");

        media.copy(&volume, &snapshot, 1 << 20).await.unwrap();
        let after = machine.without_power("after");
        let disk = media.disk(&snapshot).unwrap();
        let copy = disk.parent().unwrap().strip_prefix(&machine.root).unwrap();
        assert_eq!(contents(&after.root.join(copy)), expected, "{case}");
    }
}
