//! Device faults on mounted volumes, as a process of a pod sees them. All runs in a mount namespace of its own, with a watchdog.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};

use csi_mock_driver::admin_api::client::Client;
use serde_json::{Value, json};
use tokio::time::Instant;
use verdict::Requirement::Fuse;

use super::killed::{Calls, Machine, Running, assert_clean, names_in};
use super::*;
use crate::server::DEADLINE;

/// A driver with a published volume, and processes that use it.
struct Pod {
    running: Running,
    admin: Client,
    volume: String,
    machine: Machine,
}

// === impl Pod ===

impl Pod {
    /// A volume that a disabled rule names.
    async fn start(keeps_state: bool) -> Self {
        Self::on(Machine::apart(keeps_state), &[]).await
    }

    async fn on(machine: Machine, flags: &[&str]) -> Self {
        let faults = machine.path("faults.yaml");
        let rule = "- {id: later, enabled: false, match: {io: read}, action: {errno: EIO}}";
        fs::write(&faults, if flags.is_empty() { rule } else { "" }).unwrap();
        let mut running = Self::start_driver(&machine, flags).await;
        let used = running
            .calls
            .use_volume(&machine, "a", mount(Mode::SingleNodeMultiWriter));
        used.await.unwrap();
        let endpoint = format!("unix://{}", machine.path("admin.sock").display());
        Self {
            volume: running.calls.published.clone().unwrap().volume_id,
            admin: Client::new(endpoint.parse().unwrap()),
            running,
            machine,
        }
    }

    async fn start_driver(machine: &Machine, flags: &[&str]) -> Running {
        let mut command = machine.command("csi.sock");
        let admin = machine.path("admin.sock");
        command.arg(format!("--admin-endpoint=unix://{}", admin.display()));
        command.arg(format!("--faults={}", machine.path("faults.yaml").display()));
        command.args(flags);
        machine.start_with(command, "csi.sock").await
    }

    /// A shell in the volume, as in a container of a pod.
    fn spawn(&self, script: &str) -> Child {
        self.spawn_in("targets", script)
    }

    /// A shell at a path of the volume.
    fn spawn_in(&self, folder: &str, script: &str) -> Child {
        let path = self.machine.path(folder).join(&self.volume);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("cd {} && {script}", path.display())]);
        let mut shell = self.machine.namespace.as_ref().unwrap().command(&shell);
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.spawn().unwrap()
    }

    /// The number of descriptors of the driver.
    fn descriptors(&self) -> usize {
        let root = self.running.program.root();
        fs::read_dir(root.with_file_name("fd")).unwrap().count()
    }

    /// Ends the driver in order, and starts the next one.
    async fn restart(&mut self, flags: &[&str]) {
        self.running.program.signal(rustix::process::Signal::TERM);
        assert!(self.running.program.ended().await.success());
        let published = self.running.calls.published.clone();
        self.running = Self::start_driver(&self.machine, flags).await;
        self.running.calls.published = published;
    }

    async fn run(&self, script: &str) -> Output {
        let child = self.spawn(script);
        ended(child).await
    }

    /// The output of a script that succeeds.
    async fn succeeds(&self, script: &str) -> String {
        let output = self.run(script).await;
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn fails(&self, script: &str) -> String {
        let output = self.run(script).await;
        assert!(!output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    async fn set(&self, rule: Value) {
        self.admin.put_fault(&rule).await.unwrap();
    }

    async fn clear(&self) {
        self.admin.clear_faults().await.unwrap();
    }

    /// Waits until a rule blocks this many operations.
    async fn blocks(&self, id: &str, count: u64) {
        let blocks = async {
            loop {
                let faults = self.admin.faults().await.unwrap();
                if faults
                    .rules
                    .iter()
                    .any(|rule| rule.id == id && rule.blocked_calls == count)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, blocks).await.unwrap();
    }

    async fn publish_again(&mut self) {
        let request = self.running.calls.published.clone().unwrap();
        self.publish(request).await.unwrap();
    }

    async fn publish(&mut self, request: v1::NodePublishVolumeRequest) -> Result<(), tonic::Status> {
        let published = self.running.calls.node.node_publish_volume(request).await;
        published.map(drop)
    }

    /// Checks that a rule for the volume is refused with a word of the reason.
    async fn refuses(&self, reason: &str) {
        let matches = json!({"io": "read", "volume": &self.volume});
        let rule = mk_rule("late", matches, json!({"errno": "EIO"}));
        let refused = self.admin.put_fault(&rule).await.unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }

    async fn unpublish(&mut self) {
        let unpublished = self.running.calls.unpublish(&self.machine, &self.volume);
        assert_eq!(unpublished.await, Ok(()));
    }

    async fn end(self) {
        let Self { running, machine, .. } = self;
        let mut calls: Calls = running.calls.clone();
        calls.undo_all(&machine, "").await;
        running.end().await;
        assert_clean(&machine, "").await;
    }
}

async fn ended(mut child: Child) -> Output {
    let exited = async {
        while child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, exited)
        .await
        .expect("must end in time");
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output {
        status: child.wait().unwrap(),
        stdout,
        stderr,
    }
}

fn mk_rule(id: &str, matches: Value, action: Value) -> Value {
    json!({"id": id, "match": matches, "action": action})
}

#[tokio::test]
async fn process_sees_an_error_a_delay_and_a_hang_and_recovers() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    assert_eq!(pod.succeeds("echo hello > data && cat data").await, "hello\n");

    pod.set(mk_rule(
        "eio",
        json!({"io": "read", "path": "da*"}),
        json!({"errno": "EIO"}),
    ))
    .await;
    let error = pod.fails("cat data").await;
    assert!(error.contains("Input/output error"), "{error}");
    pod.succeeds("echo other > log && cat log").await;
    pod.clear().await;
    assert_eq!(pod.succeeds("cat data").await, "hello\n");

    pod.set(mk_rule("slow", json!({"io": "fsync"}), json!({"delay": "2s"})))
        .await;
    let begun = Instant::now();
    pod.succeeds("dd if=/dev/zero of=synced bs=4096 count=1 conv=fsync")
        .await;
    assert!(begun.elapsed() >= Duration::from_secs(2));
    pod.clear().await;

    pod.set(mk_rule(
        "hang",
        json!({"io": "write"}),
        json!({"hang": "release"}),
    ))
    .await;
    let mut hung = pod.spawn("echo more > data");
    pod.blocks("hang", 1).await;
    assert_eq!(pod.succeeds("cat log").await, "other\n", "others continue");
    assert_eq!(hung.try_wait().unwrap(), None);
    pod.admin.remove_fault("hang").await.unwrap();
    assert!(ended(hung).await.status.success());
    assert_eq!(pod.succeeds("cat data").await, "more\n");
    pod.end().await;
}

#[tokio::test]
async fn rules_select_operations_by_offset_number_and_kind() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    pod.succeeds("dd if=/dev/zero of=data bs=4096 count=4").await;
    let offset = json!({"io": "read", "path": "data", "offset": {"from": "8Ki", "to": "12Ki"}});
    pod.set(mk_rule("bad-block", offset, json!({"errno": "EIO"})))
        .await;
    pod.succeeds("dd if=data bs=4096 count=2").await;
    pod.fails("dd if=data bs=4096 count=1 skip=2").await;
    pod.succeeds("dd if=data bs=4096 count=1 skip=3").await;
    pod.clear().await;

    let end = json!({"io": "write", "path": "data", "offset": {"from": "12Ki"}});
    pod.set(mk_rule("end", end, json!({"errno": "EIO"}))).await;
    pod.fails("truncate --size=8192 data").await;
    pod.fails("fallocate --offset=12288 --length=8192 data").await;
    pod.succeeds("fallocate --offset=0 --length=4096 data").await;
    pod.clear().await;

    let full = json!({"io": ["write", "create"], "not": {"path": "*.log"}, "call": 2});
    pod.set(mk_rule("full", full, json!({"errno": "ENOSPC"}))).await;
    let error = pod
        .fails("echo 1 > a.log; echo 2 > b.log; mkdir one && mkdir two")
        .await;
    assert!(error.contains("No space left on device"), "{error}");
    pod.clear().await;

    pod.set(mk_rule(
        "torn",
        json!({"io": "write", "path": "torn"}),
        json!({"torn": 4}),
    ))
    .await;
    assert_eq!(pod.succeeds("printf 12345678 > torn && cat torn").await, "1234");
    pod.clear().await;

    pod.set(mk_rule(
        "narrow",
        json!({"io": "write"}),
        json!({"bandwidth": "16Ki"}),
    ))
    .await;
    let begun = Instant::now();
    pod.succeeds("dd if=/dev/zero of=data bs=4096 count=4").await;
    assert!(
        begun.elapsed() >= Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
    pod.clear().await;

    let after = mk_rule(
        "late",
        json!({"io": "write"}),
        json!({"effect": true, "errno": "EIO"}),
    );
    pod.set(after).await;
    pod.fails("echo done > after").await;
    pod.clear().await;
    assert_eq!(pod.succeeds("cat after").await, "done\n");
    pod.end().await;
}

#[tokio::test]
async fn writes_since_the_last_fsync_are_lost() {
    verdict::require!(Fuse);
    let mut pod = Pod::start(false).await;
    let write = "printf 'old old' > data && dd if=/dev/null of=data conv=notrunc,fsync 2>&1";
    pod.succeeds(write).await;
    pod.succeeds("printf new | dd of=data conv=notrunc && echo longer >> data && echo x > unsynced")
        .await;
    assert_eq!(pod.succeeds("cat data").await, "new oldlonger\n");
    let mut lost = mk_rule(
        "power-failure",
        json!({"io": "*"}),
        json!({"lose-unsynced": true}),
    );
    lost["times"] = json!(1);
    pod.set(lost).await;
    assert_eq!(
        pod.succeeds("cat data && stat -c %s unsynced").await,
        "old old0\n"
    );
    pod.clear().await;

    pod.succeeds("sync && : > data && echo synced > other && dd if=/dev/null of=other conv=notrunc,fsync")
        .await;
    pod.set(mk_rule(
        "at-detach",
        json!({"io": "detach"}),
        json!({"lose-unsynced": true}),
    ))
    .await;
    pod.unpublish().await;
    pod.publish_again().await;
    assert_eq!(pod.succeeds("cat data other").await, "old oldsynced\n");

    // A detach of a volume in use.
    pod.succeeds("echo unsynced > other").await;
    let detach = mk_unpublish(&pod.volume, HERE);
    let mut controller = pod.running.calls.controller.clone();
    controller.controller_unpublish_volume(detach).await.unwrap();
    assert_eq!(pod.succeeds("cat other").await, "synced\n");
    pod.end().await;
}

#[tokio::test]
async fn passthrough_filesystem_behaves_like_the_staged_one() {
    verdict::require!(Fuse);
    let pod = Pod::on(Machine::apart(false), &["--device-faults"]).await;
    let script = r#"
        stat -f -c %T .
        mkdir -p a/b && echo 1 > a/b/file && ln a/b/file hard && ln -s hard soft && mkfifo pipe
        cat soft && mv a/b/file renamed && chmod 640 renamed && touch -d @1000000000 renamed
        stat -c '%a %h %Y %s' renamed
        exec 3<>renamed; rm renamed hard; echo 22 >&3; cat /proc/self/fd/3
        for number in $(seq 300); do : > a/$number; done; ls a | wc -l
        truncate -s 1M large; stat -c %s large
        truncate -s 1T sparse; truncate -s 3 sparse; stat -c %s sparse; rm sparse
        for round in 1 2 3 4; do dd if=/dev/zero of=deleted bs=1M count=20 || exit; rm deleted; done
        rm -r a large pipe soft; ls
    "#;
    let seen = pod.succeeds(script).await;
    assert_eq!(
        seen,
        "fuseblk\n1\n640 2 1000000000 2\n22\n301\n1048576\n3\nlost+found\n"
    );
    let user = "chmod 777 . && setpriv --reuid=1234 --regid=1234 --clear-groups sh -c 'echo x > mine; mkdir own; cat /dev/null > lost+found/x' 2>&1; stat -c '%u %g' mine own";
    let seen = pod.succeeds(user).await;
    assert!(
        seen.contains("ermission denied") && seen.ends_with("1234 1234\n1234 1234\n"),
        "{seen}"
    );
    pod.end().await;
}

/// What programs rely on: the output of each line is the same in the volume as below it, on the staged filesystem.
const SAME: &str = r#"
    step() { printf '%s: ' "$1"; shift; ( "$@" ) 2>&1 | sed "s/.*: //" | tr '\n' ' '; echo; }
    as_user() { setpriv --reuid=1234 --regid=1234 --clear-groups "$@"; }
    full() { dd if=/dev/zero of=$1 bs=1M count=99 2>$1.log; [ "$(stat -c %s $1)" = "$(sed -n 's/ bytes.*//p' $1.log)" ]; echo $?; rm $1 $1.log; }
    allocated() { fallocate -l 1M $1 && fallocate -p -o 4096 -l 8192 $1; stat -c '%s %b' $1; }
    linked() { echo 1 > $1; ln $1 $1-2; rm $1; echo 2 > $1-2; ln $1-2 $1-3; stat -c %h $1-3; cat $1-3; }
    over() { echo old > $1; exec 3<$1; echo new > $1-new; mv $1-new $1; cat <&3 $1; stat -L -c %h /proc/self/fd/3; }
    removed() { echo 12345 > $1; exec 3<>$1; rm $1; truncate -s 3 /proc/self/fd/3; cat /proc/self/fd/3; stat -L -c '%s %h' /proc/self/fd/3; }
    privileged() { echo x > $1; chown 1234 $1; chmod 6775 $1; as_user sh -c "echo y >> $1"; stat -c %a $1; }
    truncated() { truncate -s 10 $1; echo more >> $1; truncate -s 12 $1; stat -c %s $1; truncate -s 20T $1; }
    large() { echo end | dd of=$1 seek=5G oflag=seek_bytes 2>/dev/null; stat -c '%s %b' $1; tail -c 4 $1; rm $1; }
    direct() { dd if=/dev/zero of=$1 bs=4096 count=2 oflag=direct && dd if=$1 of=$1-2 iflag=direct bs=4096; cmp $1 $1-2; } 2>/dev/null
    named() { touch "$(printf '\377\376')" "a b" "$(printf '%0255d' 1)"; ls -b; touch "$(printf '%0256d' 1)"; }
    locked() { ( flock -n 3 && flock -n $1 true; echo $? ) 3>$1; flock -n $1 echo free; }
    old() { touch -d '1950-01-01 00:00:00.5Z' $1; stat -c %y $1; }
    synced() { mkdir $1; echo x > $1/x; sync $1/x $1 .; }
    run() { cp /bin/echo $1; ./$1 ran; }
    many() { mkdir $1; for n in 1 2 3 4 5 6 7 8; do ( for k in $(seq 25); do echo $n > $1/$n-$k; mv $1/$n-$k $1/$n+$k; echo $n-$k >> $1/all; done ) & done; wait; ls $1 | wc -l; sort -u $1/all | wc -l; }
    same() { cd ..; ls -ia | grep -q "^ *$(stat -c %i .) \.\$"; echo $?; }
    for name in same linked over removed allocated privileged truncated large direct named locked old synced run many full; do step $name $name $name; done"#;

#[tokio::test]
async fn programs_see_no_difference_to_the_staged_filesystem() {
    verdict::require!(Fuse);
    let pod = Pod::on(Machine::apart(false), &["--device-faults"]).await;
    let mut seen = Vec::new();
    for (folder, name) in [("staging", "a"), ("targets", "b")] {
        let child = pod.spawn_in(
            folder,
            &format!("mkdir {name} && cd {name} && chmod 777 . && {SAME}"),
        );
        let output = ended(child).await;
        assert!(output.status.success(), "{output:?}");
        seen.push(String::from_utf8_lossy(&output.stdout).into_owned());
        pod.succeeds(&format!("rm -r {name}")).await;
    }
    let lines = |index: usize| seen[index].lines().collect::<Vec<_>>();
    assert_eq!(lines(0), lines(1));
    pod.end().await;
}

#[tokio::test]
async fn failed_lookups_and_creations_leave_no_descriptor() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    // Which the kernel does not know in the volume.
    let created = pod.spawn_in("staging", "for n in $(seq 100); do : > old$n; done");
    assert!(ended(created).await.status.success());
    let before = pod.descriptors();
    let matches = json!({"io": ["create", "stat"]});
    pod.set(mk_rule("late", matches, json!({"effect": true, "errno": "EIO"})))
        .await;
    pod.succeeds("for n in $(seq 100); do ! stat old$n; ! mkdir new$n; ! touch file$n; done 2>&1; true")
        .await;
    pod.clear().await;
    let after = pod.descriptors();
    assert!(after < before + 50, "{before} before, {after} after");
    assert_eq!(pod.succeeds("ls | wc -l").await, "301\n", "they were created");
    pod.end().await;
}

#[tokio::test]
async fn rule_with_effect_skips_io_that_fails_by_itself() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    let mut late = mk_rule(
        "late",
        json!({"io": "write"}),
        json!({"effect": true, "errno": "EIO"}),
    );
    late["times"] = json!(1);
    pod.set(late).await;
    let error = pod.fails("truncate -s 20T data").await;
    assert!(error.contains("File too large"), "{error}");
    pod.fails("echo done >> data").await;
    assert_eq!(pod.succeeds("cat data").await, "done\n");
    pod.end().await;
}

#[tokio::test]
async fn reading_takes_the_time_of_the_bytes_that_are_there() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    pod.succeeds("echo few > data").await;
    pod.set(mk_rule(
        "narrow",
        json!({"io": "read"}),
        json!({"bandwidth": "16Ki"}),
    ))
    .await;
    let begun = Instant::now();
    pod.succeeds("cat data").await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    pod.end().await;
}

#[tokio::test]
async fn rules_match_paths_of_linked_and_removed_files_and_fsync_of_directories() {
    verdict::require!(Fuse);
    let pod = Pod::start(false).await;
    let matches = json!({"io": ["read", "fsync"], "path": "seen*"});
    pod.set(mk_rule("eio", matches, json!({"errno": "EIO"}))).await;
    pod.succeeds("echo 1 > first && ln first seen && rm first && mkdir seen-dir")
        .await;
    pod.fails("cat seen").await;
    pod.fails("exec 3<seen; rm seen; cat <&3").await;
    let error = pod.fails("sync seen-dir").await;
    assert!(error.contains("Input/output error"), "{error}");
    pod.end().await;
}

#[tokio::test]
async fn killed_driver_leaves_no_passthrough_filesystem() {
    verdict::require!(Fuse);
    for (keeps_state, cleans) in [(false, false), (false, true), (true, false)] {
        let mut pod = Pod::start(keeps_state).await;
        pod.set(mk_rule(
            "hang",
            json!({"io": "write"}),
            json!({"hang": "release"}),
        ))
        .await;
        let hung = pod.spawn("echo more > data");
        pod.blocks("hang", 1).await;
        pod.running.kill().await;
        assert!(
            !ended(hung).await.status.success(),
            "the kernel aborts what waits"
        );
        let Pod { machine, .. } = pod;
        let is_fuse = |line: &String| line.contains(" fuse ");
        assert!(
            machine.leftovers().iter().any(is_fuse),
            "{:#?}",
            machine.leftovers()
        );

        if cleans {
            let mut clean = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
            let namespace = machine.namespace.as_ref().unwrap();
            let mut clean = namespace.command(clean.arg("clean"));
            let output = clean.env("TMPDIR", machine.path("tmp")).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_clean(&machine, "clean").await;
        }
        let mut next = machine.start("next.sock").await;
        assert!(
            !machine.leftovers().iter().any(is_fuse),
            "{:#?}",
            machine.leftovers()
        );
        next.calls.undo_all(&machine, "").await;
        next.end().await;
        assert_eq!(names_in(&machine.path("targets")), Vec::<String>::new());
        if keeps_state {
            // With a state directory, the next start at them replaces them.
            remove_sockets(&machine);
        }
        assert_clean(&machine, &format!("state: {keeps_state}")).await;
    }
}

/// As in a container: the files of the killed driver are gone, and its mounts below kubelet's directory are not.
#[tokio::test]
async fn calls_undo_what_a_killed_driver_left_whose_files_are_gone() {
    verdict::require!(Fuse);
    let mut pod = Pod::start(false).await;
    pod.running.kill().await;
    let Pod { machine, volume, .. } = pod;
    fs::remove_dir_all(machine.path("tmp")).unwrap();
    fs::create_dir(machine.path("tmp")).unwrap();
    let is_fuse = |line: &String| line.contains(" fuse ") && line.contains(&volume);
    assert!(
        machine.leftovers().iter().any(is_fuse),
        "{:#?}",
        machine.leftovers()
    );
    let mut next = machine.start("next.sock").await;
    assert_eq!(next.calls.unpublish(&machine, &volume).await, Ok(()));
    assert!(
        !machine.leftovers().iter().any(is_fuse),
        "{:#?}",
        machine.leftovers()
    );
    next.calls.undo_all(&machine, "").await;
    next.end().await;
    // With its files, the note of its sockets is gone, too.
    remove_sockets(&machine);
    assert_clean(&machine, "").await;
}

fn remove_sockets(machine: &Machine) {
    for socket in ["csi.sock", "admin.sock"] {
        fs::remove_file(machine.path(socket)).unwrap();
    }
}

#[tokio::test]
async fn end_of_the_driver_aborts_what_hangs() {
    verdict::require!(Fuse);
    for keeps_state in [false, true] {
        let pod = Pod::start(keeps_state).await;
        pod.set(mk_rule("hang", json!({"io": "*"}), json!({"hang": "release"})))
            .await;
        let hung = pod.spawn("echo more > data");
        pod.blocks("hang", 1).await;
        let Pod { running, machine, .. } = pod;
        running.end().await;
        assert!(!ended(hung).await.status.success());
        let mut next = machine.start("next.sock").await;
        next.calls.undo_all(&machine, "").await;
        next.end().await;
        assert_clean(&machine, &format!("state: {keeps_state}")).await;
    }
}

#[tokio::test]
async fn rule_that_cannot_take_effect_is_refused() {
    verdict::require!(Fuse);
    let mut pod = Pod::on(Machine::apart(false), &["--latency=0s"]).await;
    let rule = mk_rule(
        "late",
        json!({"io": "read", "volume": &pod.volume}),
        json!({"errno": "EIO"}),
    );
    let refused = pod.admin.put_fault(&rule).await.unwrap_err().to_string();
    assert!(refused.contains("--device-faults"), "{refused}");
    pod.unpublish().await;
    pod.set(rule).await;
    pod.publish_again().await;
    pod.succeeds("echo x > data").await;
    pod.fails("cat data").await;
    pod.clear().await;

    let block = mk_block(Mode::SingleNodeWriter);
    pod.running
        .calls
        .use_volume(&pod.machine, "b", block)
        .await
        .unwrap();
    let volume = pod.running.calls.published.clone().unwrap().volume_id;
    let rule = mk_rule(
        "raw",
        json!({"io": "read", "volume": &volume}),
        json!({"errno": "EIO"}),
    );
    let refused = pod.admin.put_fault(&rule).await.unwrap_err().to_string();
    assert!(
        refused.contains("device-mapper") && refused.contains("ublk"),
        "{refused}"
    );
    let unpublished = pod.running.calls.unpublish(&pod.machine, &volume).await;
    assert_eq!(unpublished, Ok(()));
    pod.set(rule).await;
    let request = pod.running.calls.published.clone().unwrap();
    let refused = pod
        .running
        .calls
        .node
        .node_publish_volume(request)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("device-mapper"), "{refused}");
    pod.end().await;
}

#[tokio::test]
async fn restarted_driver_refuses_rules_for_volumes_published_without_device_faults() {
    verdict::require!(Fuse);
    let mut pod = Pod::on(Machine::apart(true), &["--latency=0s"]).await;
    pod.restart(&[]).await;
    pod.refuses("--device-faults").await;
    let other = json!({"io": "read", "volume": "*", "not": {"volume": &pod.volume, "node": HERE}});
    // Both the volume of the array and the inline one are published.
    let all_but_these = json!({"io": "read", "not": {"volume": "*"}});
    pod.set(mk_rule("none", all_but_these, json!({"errno": "EIO"})))
        .await;
    let other = mk_rule("other", other, json!({"errno": "EIO"}));
    let refused = pod.admin.put_fault(&other).await.unwrap_err().to_string();
    assert!(refused.contains("inline-a"), "{refused}");

    let block = mk_block(Mode::SingleNodeWriter);
    let calls = &mut pod.running.calls;
    let published = calls.published.clone();
    calls.use_volume(&pod.machine, "b", block).await.unwrap();
    let mounted = std::mem::replace(&mut pod.volume, calls.published.clone().unwrap().volume_id);
    calls.published = published;
    pod.restart(&[]).await;
    pod.refuses("device-mapper").await;
    pod.volume = mounted;

    // A rule of the fault file is there first: a second target would not have it.
    let rule = format!(
        "- {{id: file, match: {{io: read, volume: {}}}, action: {{errno: EIO}}}}",
        pod.volume
    );
    fs::write(pod.machine.path("faults.yaml"), rule).unwrap();
    pod.restart(&[]).await;
    let first = pod.running.calls.published.clone().unwrap();
    let target = text(&pod.machine.path("targets").join(format!("{}-2", pod.volume)));
    let second = v1::NodePublishVolumeRequest {
        target_path: target.clone(),
        ..first.clone()
    };
    let refused = pod.publish(second.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&first.target_path), "{refused}");
    pod.unpublish().await;
    pod.publish(second).await.unwrap();
    pod.publish_again().await;
    pod.succeeds("echo x > data").await;
    pod.fails("cat data").await;
    let request = v1::NodeUnpublishVolumeRequest {
        volume_id: pod.volume.clone(),
        target_path: target,
    };
    pod.running
        .calls
        .node
        .node_unpublish_volume(request)
        .await
        .unwrap();
    pod.fails("cat data").await;
    remove_state(pod).await;
}

/// Ends a driver that keeps its state.
async fn remove_state(pod: Pod) {
    let Pod {
        mut running, machine, ..
    } = pod;
    running.calls.undo_all(&machine, "").await;
    running.end().await;
    assert_clean(&machine, "").await;
}

#[tokio::test]
async fn emulated_devices_have_no_device_faults() {
    let env = TestEnv::start(Choice::Emulated).await;
    let rule = mk_rule("eio", json!({"io": "read"}), json!({"errno": "EIO"}));
    let rule = csi_mock_driver::fault::Rule::from_value(rule).unwrap();
    let refused = env.server.driver().faults.put(rule).unwrap_err().to_string();
    assert!(refused.contains("--devices=loop"), "{refused}");
    env.end().await;
}
