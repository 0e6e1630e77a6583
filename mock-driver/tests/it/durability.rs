//! Durability: acknowledged calls survive a kill at any time.

mod calls;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::{self, volume_capability::access_mode::Mode};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time;
use tonic::transport::Channel;

use crate::program::Program;
use crate::server::{Server, mk_block, mk_create, mk_delete, mk_map, mk_publish, mk_unpublish, published};

/// Clients that load the driver while it is killed.
const CLIENTS: usize = 16;

/// Kills in one test, each at another point of the work.
const KILLS: u64 = 4;

/// A client's knowledge of its volume.
#[derive(Clone, Debug, Default)]
struct Known {
    id: Option<String>,
    node: Option<String>,
    /// A call was sent and its response not received: it may have taken effect.
    open: bool,
}

type Ledger = Arc<Mutex<BTreeMap<String, Known>>>;

async fn start(directory: &Path) -> Program {
    let flag = format!("--state-dir={}", directory.join("state").display());
    Program::start(&directory.join("csi.sock"), ["--volumes=3".to_owned(), flag]).await
}

/// A client that uses one volume after the other.
struct Worker {
    client: ControllerClient<Channel>,
    ledger: Ledger,
}

impl Worker {
    /// Works until a call fails.
    async fn work(mut self, prefix: String) {
        for number in 0_u64.. {
            if self.live(&format!("{prefix}-{number}"), number).await.is_none() {
                return;
            }
        }
    }

    /// Creates and attaches a volume, and sometimes detaches and deletes it. `None` if a call fails.
    async fn live(&mut self, name: &str, number: u64) -> Option<()> {
        self.note(name, Known::asked(None));
        let reply = self.client.create_volume(mk_create(name)).await.ok()?;
        let id = reply.into_inner().volume.unwrap().volume_id;
        let (id, node) = (id.as_str(), format!("node-{}", number % 3));
        self.note(name, Known::acknowledged(id, None));

        self.note(name, Known::asked(Some(id)));
        self.client
            .controller_publish_volume(mk_publish(id, &node))
            .await
            .ok()?;
        self.note(name, Known::acknowledged(id, Some(&node)));
        if number.is_multiple_of(3) {
            return Some(());
        }
        self.note(name, Known::asked(Some(id)));
        self.client
            .controller_unpublish_volume(mk_unpublish(id, &node))
            .await
            .ok()?;
        self.note(name, Known::acknowledged(id, None));
        if number % 3 == 1 {
            return Some(());
        }
        self.note(name, Known::asked(Some(id)));
        self.client.delete_volume(mk_delete(id)).await.ok()?;
        self.note(name, Known::default());
        Some(())
    }

    fn note(&self, name: &str, known: Known) {
        self.ledger.lock().unwrap().insert(name.to_owned(), known);
    }
}

impl Known {
    /// A call is pending.
    fn asked(id: Option<&str>) -> Self {
        Self {
            id: id.map(str::to_owned),
            node: None,
            open: true,
        }
    }

    /// A call was acknowledged.
    fn acknowledged(id: &str, node: Option<&str>) -> Self {
        Self {
            id: Some(id.to_owned()),
            node: node.map(str::to_owned),
            open: false,
        }
    }
}

/// Compares the array with the acknowledged calls, and retries those without response.
async fn settle(client: &mut ControllerClient<Channel>, ledger: &Ledger) {
    let mut listed: BTreeMap<String, Vec<String>> = published(client).await.into_iter().collect();
    let entries: Vec<(String, Known)> = ledger.lock().unwrap().clone().into_iter().collect();
    for (name, known) in entries {
        let found = match &known.id {
            Some(id) => listed.remove(id).map(|nodes| (id.clone(), nodes)),
            None => None,
        };
        if !known.open {
            let nodes = found.map(|(_, nodes)| nodes);
            let expected = known
                .id
                .as_ref()
                .map(|_| known.node.iter().cloned().collect::<Vec<_>>());
            assert_eq!(nodes, expected, "{name}: acknowledged as {known:?}");
            continue;
        }
        // Its effect is unknown; the idempotent creation returns the volume.
        let reply = client.create_volume(mk_create(&name)).await.unwrap();
        let id = reply.into_inner().volume.unwrap().volume_id;
        listed.remove(&id);
        let get = v1::ControllerGetVolumeRequest {
            volume_id: id.clone(),
        };
        let status = client
            .controller_get_volume(get)
            .await
            .unwrap()
            .into_inner()
            .status
            .unwrap();
        assert!(status.published_node_ids.len() <= 1, "{name}: {status:?}");
        let node = status.published_node_ids.into_iter().next();
        ledger
            .lock()
            .unwrap()
            .insert(name, Known::acknowledged(&id, node.as_deref()));
    }
    listed.retain(|id, _| !id.starts_with("vol-"));
    assert!(listed.is_empty(), "unrequested volumes: {listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_call_survives_kill_9_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::default();
    for round in 0..KILLS {
        let mut program = start(directory.path()).await;
        let mut client = program.controller().await;
        settle(&mut client, &ledger).await;
        let before = ledger.lock().unwrap().len();

        let mut workers = JoinSet::new();
        for number in 0..CLIENTS {
            let worker = Worker {
                client: client.clone(),
                ledger: ledger.clone(),
            };
            workers.spawn(worker.work(format!("{round}-{number}")));
        }
        // Waits until enough calls are running; the exact time of the kill is arbitrary.
        while ledger.lock().unwrap().len() < before + 10 * CLIENTS {
            time::sleep(Duration::from_millis(1)).await;
        }
        time::sleep(Duration::from_micros(700 * (round + 1))).await;
        program.signal(Signal::KILL);
        program.ended().await;
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
    }
    let program = start(directory.path()).await;
    settle(&mut program.controller().await, &ledger).await;
}

#[tokio::test]
async fn restart_restores_volumes_attachments_tokens_and_ids() {
    let directory = tempfile::tempdir().unwrap();
    let mut program = start(directory.path()).await;
    let mut client = program.controller().await;
    let create = v1::CreateVolumeRequest {
        parameters: mk_map(&[("tier", "gold")]),
        volume_capabilities: vec![mk_block(Mode::MultiNodeMultiWriter)],
        ..mk_create("a")
    };
    let volume = client
        .create_volume(create.clone())
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap();
    let publish = |node: &str| v1::ControllerPublishVolumeRequest {
        volume_capability: Some(mk_block(Mode::MultiNodeMultiWriter)),
        readonly: true,
        ..mk_publish(&volume.volume_id, node)
    };
    let context = client
        .controller_publish_volume(publish("node-0"))
        .await
        .unwrap()
        .into_inner();
    client.controller_publish_volume(publish("node-1")).await.unwrap();
    client.delete_volume(mk_delete("vol-1")).await.unwrap();
    let page = v1::ListVolumesRequest {
        max_entries: 1,
        starting_token: String::new(),
    };
    let token = client.list_volumes(page).await.unwrap().into_inner().next_token;
    let before = published(&mut client).await;
    program.signal(Signal::TERM);
    assert_eq!(program.ended().await.code(), Some(0));

    for _ in 0..2 {
        let mut program = start(directory.path()).await;
        let mut client = program.controller().await;
        assert_eq!(published(&mut client).await, before, "vol-1 stays deleted");
        let again = client
            .create_volume(create.clone())
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap();
        assert_eq!(again, volume);
        let repeated = client
            .controller_publish_volume(publish("node-0"))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(repeated, context);
        let next = v1::ListVolumesRequest {
            max_entries: 0,
            starting_token: token.clone(),
        };
        let rest = client.list_volumes(next).await.unwrap().into_inner();
        assert_eq!(rest.entries.len(), before.len() - 1);
        program.signal(Signal::KILL);
        program.ended().await;
    }
}

#[tokio::test]
async fn removed_node_keeps_volumes_until_unpublished() {
    let state = tempfile::tempdir().unwrap();
    let start = async |nodes: usize| {
        Server::start_with(|_, settings| {
            settings.array.nodes.truncate(nodes);
            settings.initial_volumes = 1;
            settings.state_dir = Some(state.path().to_owned());
        })
        .await
    };
    let server = start(3).await;
    server
        .controller()
        .await
        .controller_publish_volume(mk_publish("vol-0", "node-2"))
        .await
        .unwrap();
    server.stop().await;

    let server = start(1).await;
    let mut client = server.controller().await;
    assert_eq!(
        published(&mut client).await,
        [("vol-0".to_owned(), vec!["node-2".to_owned()])]
    );
    let elsewhere = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert!(elsewhere.message().contains("node-2"), "{elsewhere}");
    client
        .controller_unpublish_volume(mk_unpublish("vol-0", "node-2"))
        .await
        .unwrap();
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
}
