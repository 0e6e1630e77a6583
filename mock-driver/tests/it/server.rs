//! A driver in the test process with a socket in a temporary directory, and its clients.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_mock_driver::admin_api;
use csi_mock_driver::admin_api::client::Client;
use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::fault::{FaultFile, Origin, Rule};
use csi_mock_driver::run;
use csi_mock_driver::socket::Listener;
use csi_mock_driver::store::volume_files::FileId;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// Timeout of conditions; only a defect exceeds it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A driver and its files.
pub(crate) struct Server {
    directory: TempDir,
    driver: Arc<Driver>,
    stop: CancellationToken,
    serving: JoinSet<Result<(), run::Error>>,
    admin: admin_api::Endpoint,
}

// === impl Server ===

impl Server {
    /// With five volumes and three nodes.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_, settings| settings.initial_volumes = 5).await
    }

    /// With the default settings modified by `change`, which also gets the directory for files.
    pub(crate) async fn start_with(change: impl FnOnce(&Path, &mut Settings)) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), change).await
    }

    /// In the directory of a stopped server.
    pub(crate) async fn start_in(directory: TempDir, change: impl FnOnce(&Path, &mut Settings)) -> Self {
        Self::start_all(directory, None, DEADLINE, change).await
    }

    /// With another `--shutdown-grace`.
    pub(crate) async fn start_with_grace(grace: Duration, change: impl FnOnce(&Path, &mut Settings)) -> Self {
        Self::start_all(tempfile::tempdir().unwrap(), None, grace, change).await
    }

    /// With the admin API on a socket.
    pub(crate) async fn start_with_admin(admin: &Path, change: impl FnOnce(&Path, &mut Settings)) -> Self {
        let endpoint = format!("unix://{}", admin.display()).parse().unwrap();
        let admin = csi_mock_driver::admin::Server::bind(&endpoint, false)
            .await
            .unwrap();
        Self::start_all(tempfile::tempdir().unwrap(), admin, DEADLINE, change).await
    }

    /// With an admin API on a Unix socket, and a client for it.
    pub(crate) async fn start_administered(change: impl FnOnce(&Path, &mut Settings)) -> (Self, Client) {
        let directory = tempfile::tempdir().unwrap();
        let endpoint = directory
            .path()
            .join("admin.sock")
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        Self::start_served(directory, endpoint, change).await
    }

    /// With an admin API on a free port, and a client for it.
    pub(crate) async fn start_on_tcp(change: impl FnOnce(&Path, &mut Settings)) -> (Self, Client) {
        let endpoint = "127.0.0.1:0".parse().unwrap();
        Self::start_served(tempfile::tempdir().unwrap(), endpoint, change).await
    }

    async fn start_served(
        directory: TempDir,
        endpoint: admin_api::Endpoint,
        change: impl FnOnce(&Path, &mut Settings),
    ) -> (Self, Client) {
        let admin = csi_mock_driver::admin::Server::bind(&endpoint, false)
            .await
            .unwrap();
        let server = Self::start_all(directory, admin, DEADLINE, |directory, settings| {
            settings.journal_config.kept = 1000;
            change(directory, settings);
        })
        .await;
        let client = Client::new(server.admin.clone());
        (server, client)
    }

    /// The TCP address of the admin API.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        match &self.admin {
            admin_api::Endpoint::Tcp(address) => *address,
            other @ (admin_api::Endpoint::None
            | admin_api::Endpoint::Host { .. }
            | admin_api::Endpoint::Unix(_)) => {
                panic!("the admin API is {other}")
            }
        }
    }

    async fn start_all(
        directory: TempDir,
        admin: Option<csi_mock_driver::admin::Server>,
        grace: Duration,
        change: impl FnOnce(&Path, &mut Settings),
    ) -> Self {
        let mut settings = Settings::default();
        change(directory.path(), &mut settings);
        let endpoint = admin.as_ref().map(|admin| admin.endpoint().clone());
        let (driver, faults) = open(settings).await;
        let listener = Listener::bind(&directory.path().join("csi.sock").into()).unwrap();
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(run::serve(
            driver.clone(),
            faults,
            listener,
            admin,
            stop.clone(),
            grace,
        ));
        Self {
            directory,
            driver,
            stop,
            serving,
            admin: endpoint.unwrap_or_default(),
        }
    }

    /// Begins a graceful shutdown.
    pub(crate) fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the driver exits by itself; returns its result.
    pub(crate) async fn ended(&mut self) -> Result<(), run::Error> {
        let ended = time::timeout(DEADLINE, self.serving.join_next()).await;
        ended.expect("must exit in time").unwrap().unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.directory.path().join("csi.sock")).await
    }

    pub(crate) async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }

    pub(crate) async fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel().await)
    }

    pub(crate) async fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel().await)
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// The media directory.
    pub(crate) fn media(&self) -> PathBuf {
        self.driver.volume_files.directory().unwrap()
    }

    /// The volume file.
    pub(crate) fn disk(&self, volume: &str) -> PathBuf {
        self.driver
            .volume_files
            .disk(&FileId::Volume(volume.to_owned()))
            .unwrap()
    }

    /// Replaces the fault file's contents.
    pub(crate) fn set_faults(&self, yaml: &str) {
        let rules = Rule::read_list(yaml).unwrap();
        self.driver.faults.load(Origin::Admin, rules).unwrap();
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Stops gracefully and returns the directory.
    pub(crate) async fn stop(mut self) -> TempDir {
        self.stop.cancel();
        let ended = time::timeout(DEADLINE, self.serving.join_next())
            .await
            .expect("must stop in time");
        ended.unwrap().unwrap().unwrap();
        self.directory
    }
}

/// A driver on a directory that may still be locked: a child process that another test is starting has a copy of each lock
/// until its exec.
async fn open(settings: Settings) -> (Arc<Driver>, Option<FaultFile>) {
    let opened = async {
        loop {
            match Driver::open(settings.clone()) {
                Err(error) if error.is_in_use() => time::sleep(Duration::from_millis(1)).await,
                opened => return opened.unwrap(),
            }
        }
    };
    let opened = time::timeout(DEADLINE, opened).await;
    opened.expect("the lock must become free")
}

/// A channel to a bound socket.
pub(crate) async fn connect(socket: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", socket.display()))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// The lines of a journal so far.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // A line without its end is still being written.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until the journal has a line that `wanted` accepts, and returns the first.
pub(crate) async fn line_in(path: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = async {
        loop {
            if let Some(line) = lines(path).into_iter().find(&wanted) {
                return line;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    match time::timeout(DEADLINE, found).await {
        Ok(line) => line,
        Err(_) => panic!(
            "no such line in the journal:\n{}",
            fs::read_to_string(path).unwrap()
        ),
    }
}

/// Makes a call and cancels it when `condition` completes.
pub(crate) async fn cancel_after<T: Debug>(
    condition: impl Future<Output = ()>,
    call: impl Future<Output = T>,
) {
    tokio::select! {
        biased;
        response = call => panic!("completed before the cancellation: {response:?}"),
        condition = time::timeout(DEADLINE, condition) => condition.expect("must come in time"),
    }
}

/// Waits for the first begin line of a journal.
pub(crate) async fn begun(journal: &Path) {
    line_in(journal, |line| line["event"] == "begin").await;
}

// === the smallest valid messages ===

pub(crate) fn mk_block(mode: Mode) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

pub(crate) fn mk_mount(fs_type: &str, mode: Mode) -> v1::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.to_owned(),
        ..Default::default()
    };
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

pub(crate) fn mk_create(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![mk_mount("", Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

pub(crate) fn mk_publish(volume: &str, node: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mk_mount("", Mode::SingleNodeWriter)),
        ..Default::default()
    }
}

pub(crate) fn mk_unpublish(volume: &str, node: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn mk_delete(volume: &str) -> v1::DeleteVolumeRequest {
    v1::DeleteVolumeRequest {
        volume_id: volume.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn mk_map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Every volume with its nodes, read page by page.
pub(crate) async fn published(client: &mut ControllerClient<Channel>) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let mut starting_token = String::new();
    loop {
        let page = client
            .list_volumes(v1::ListVolumesRequest {
                max_entries: 0,
                starting_token,
            })
            .await
            .unwrap()
            .into_inner();
        for entry in page.entries {
            all.push((
                entry.volume.unwrap().volume_id,
                entry.status.unwrap().published_node_ids,
            ));
        }
        if page.next_token.is_empty() {
            return all;
        }
        starting_token = page.next_token;
    }
}
