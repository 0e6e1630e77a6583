//! Measures the embedded cluster: its API server alone, then the whole path of pods with volumes, with controllers,
//! kubelets, attacher and driver in this process.

mod measured;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use csi_attacher::args::Args;
use csi_attacher::csi::{Connect, OpenError};
use csi_attacher::kube_api::Access;
use csi_attacher::manager::{self, Environment, Pod as AttacherPod};
use csi_mock_driver::array::{self, NodeId};
use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::service::services;
use embedded_cluster::apiserver::{self, ApiServer};
use embedded_cluster::cluster::{ClusterOptions, EmbeddedCluster, NodeOptions};
use embedded_cluster::driver_connection::DriverConnection;
use futures::TryStreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt};
use procfs::Current as _;
use procfs::process::Process;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::DuplexStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use self::measured::Measured;
use crate::objects::{create, delete, object, patch_status};

/// Name of the driver.
const DRIVER: &str = "bench.csi.example";
const NAMESPACE: &str = "default";
/// Concurrent clients that write in the API server's row.
const CLIENTS: usize = 4;
/// Concurrent watches of the API server's row.
const WATCHES: usize = 10;
/// Bytes in flight on the attacher's connection to the driver.
const IN_FLIGHT: usize = 64 * 1024;
/// Default of kubelet's `nodeStatusReportFrequency`.
const NODE_STATUS_REPORT_FREQUENCY: Duration = Duration::from_secs(300);
/// Limit of one phase.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Number of pods, each with a volume of its own.
    pub volumes: usize,
    /// Number of nodes, on which the pods are distributed evenly.
    pub nodes: usize,
}

/// The attacher's connections to the driver in process.
#[derive(Clone)]
struct InProcess(Routes);

// === impl Scale ===

impl Scale {
    /// 20 volumes for each node.
    pub(crate) fn of(volumes: usize) -> Self {
        Self {
            volumes,
            nodes: volumes.div_ceil(20),
        }
    }

    fn names(self) -> Vec<String> {
        (0..self.volumes).map(volume_name).collect()
    }

    fn node(self, number: usize) -> String {
        format!("node-{}", number % self.nodes)
    }
}

fn volume_name(number: usize) -> String {
    format!("vol-{number}")
}

// === impl InProcess ===

impl Connect for InProcess {
    type Stream = DuplexStream;

    async fn connect(&self) -> Result<DuplexStream, OpenError> {
        let (client, server) = tokio::io::duplex(IN_FLIGHT);
        let services = self.0.clone();
        // The task ends when the attacher closes the connection.
        tokio::spawn(async move {
            let service = service_fn(move |request: http::Request<Incoming>| {
                services.clone().call(request.map(Body::new))
            });
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(server), service)
                .await
        });
        Ok(client)
    }
}

// === the measurements ===

/// Measures one cluster after the other.
///
/// # Errors
/// A phase fails or does not end within an hour.
pub(crate) async fn measure(scale: Scale) -> Result<Measured> {
    let ready = measure_start().await?;
    let (creations, status_patches, watch_events) = measure_api_server(scale).await?;
    let [bind, attach, detach] = measure_whole_path(scale).await?;
    let peak_kib = Process::myself()?.status()?.vmhwm;
    Ok(Measured {
        scale,
        ready,
        creations,
        status_patches,
        watch_events,
        bind,
        attach,
        detach,
        peak_bytes: peak_kib.context("/proc/self/status must have VmHWM")? * 1024,
    })
}

/// From the start of this process until the API server has answered a request on its port.
async fn measure_start() -> Result<Duration> {
    let cluster = EmbeddedCluster::start(ClusterOptions::default());
    let listener = cluster.api_server().serve(0).await.context("serve the API")?;
    let kubeconfig = Kubeconfig::from_yaml(&listener.kubeconfig().yaml)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // Ignore `HTTPS_PROXY`: the API server is on loopback.
    config.proxy_url = None;
    let mut serving = JoinSet::new();
    serving.spawn(listener.run());
    Client::try_from(config)?.apiserver_version().await?;
    process_age()
}

/// Uptime of this process, with a resolution of 10 ms.
fn process_age() -> Result<Duration> {
    let started = Process::myself()?.stat()?.starttime as f64 / procfs::ticks_per_second() as f64;
    let now = procfs::Uptime::current()?.uptime;
    Ok(Duration::from_secs_f64((now - started).max(0.0)))
}

/// Creations, status patches and watch events per second.
async fn measure_api_server(scale: Scale) -> Result<(f64, f64, f64)> {
    let server = ApiServer::new(&apiserver::Options::default());
    let rate = |count: usize, started: Instant| count as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    with_clients(&server, scale, |attachments, numbers| async move {
        let wanted = numbers.map(|number| {
            object(json!({
                "metadata": {"name": volume_name(number)},
                "spec": {"attacher": DRIVER, "nodeName": scale.node(number),
                    "source": {"persistentVolumeName": volume_name(number)}},
            }))
        });
        create(&attachments, wanted).await
    })
    .await?;
    let creations = rate(scale.volumes, started);
    let started = Instant::now();
    with_clients(&server, scale, |attachments, numbers| async move {
        let names: Vec<_> = numbers.map(volume_name).collect();
        patch_status(&attachments, &names, json!({"attached": true})).await
    })
    .await?;
    let status_patches = rate(scale.volumes, started);
    // A watch from the collection's first version sends an event for each object.
    let started = Instant::now();
    let mut watches = JoinSet::new();
    for _ in 0..WATCHES {
        let attachments = Api::<VolumeAttachment>::all(server.client());
        watches.spawn(async move {
            let streaming = watcher::Config::default().streaming_lists();
            let mut events = pin!(watcher(attachments, streaming));
            let mut seen = 0;
            while seen < scale.volumes {
                if let Event::InitApply(_) = events.try_next().await?.context("a watch must not end")? {
                    seen += 1;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(watched) = watches.join_next().await {
        watched??;
    }
    Ok((creations, status_patches, rate(WATCHES * scale.volumes, started)))
}

/// Executes the requests for all VolumeAttachments, divided between clients that run in parallel.
async fn with_clients<F>(
    server: &ApiServer,
    scale: Scale,
    requests: impl Fn(Api<VolumeAttachment>, Range<usize>) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let share = scale.volumes.div_ceil(CLIENTS).max(1);
    let mut clients = JoinSet::new();
    for first in (0..scale.volumes).step_by(share) {
        let numbers = first..scale.volumes.min(first + share);
        clients.spawn(requests(Api::all(server.client()), numbers));
    }
    while let Some(written) = clients.join_next().await {
        written??;
    }
    Ok(())
}

/// Durations of binding, attaching and detaching.
async fn measure_whole_path(scale: Scale) -> Result<[Duration; 3]> {
    let array = mk_array(scale)?;
    let mut cluster = EmbeddedCluster::start(ClusterOptions {
        node_status_report_frequency: NODE_STATUS_REPORT_FREQUENCY,
        ..ClusterOptions::default()
    });
    let client = cluster.client();
    let mut attacher = start_attacher(cluster.api_server(), &array)?;
    let driver: CSIDriver = object(json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}))?;
    create(&Api::all(client.clone()), [Ok(driver)]).await?;
    for number in 0..scale.nodes {
        let name = scale.node(number);
        let driver = array
            .on_node(&name)
            .with_context(|| format!("start the driver of {name}"))?;
        let connection = DriverConnection::new(services(&driver));
        cluster.add_node(NodeOptions::new(&name, Some(connection)));
    }
    let measured = async {
        wait("node", &client, scale.nodes, |node: &CSINode| {
            node.spec.drivers.iter().any(|driver| driver.name == DRIVER)
        })
        .await?;
        let started = Instant::now();
        create_volumes(&client, scale).await?;
        wait(
            "bound claim",
            &client,
            scale.volumes,
            |claim: &PersistentVolumeClaim| {
                let status = claim.status.as_ref();
                status.and_then(|status| status.phase.as_deref()) == Some("Bound")
            },
        )
        .await?;
        let bind = started.elapsed();
        tracing::info!(?bind, "all claims are bound");
        let started = Instant::now();
        create_pods(&client, scale).await?;
        wait(
            "attached volume",
            &client,
            scale.volumes,
            |attachment: &VolumeAttachment| attachment.status.as_ref().is_some_and(|status| status.attached),
        )
        .await?;
        wait("running pod", &client, scale.volumes, |pod: &Pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await?;
        let attach = started.elapsed();
        tracing::info!(?attach, "all pods run");
        let started = Instant::now();
        delete(&Api::<Pod>::namespaced(client.clone(), NAMESPACE), &scale.names()).await?;
        wait("VolumeAttachment", &client, 0, |_: &VolumeAttachment| true).await?;
        Ok([bind, attach, started.elapsed()])
    };
    tokio::select! {
        measured = measured => measured,
        Some(ended) = attacher.join_next() => bail!("the attacher ended: {ended:?}"),
    }
}

/// Waits until `wanted` holds for `count` objects.
async fn wait<K>(what: &str, client: &Client, count: usize, wanted: impl Fn(&K) -> bool) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + 'static,
{
    let streaming = watcher::Config::default().streaming_lists();
    let mut events = pin!(watcher(Api::<K>::all(client.clone()), streaming).default_backoff());
    let (mut found, mut listed) = (BTreeSet::new(), false);
    let counting = async {
        while !listed || found.len() != count {
            match events.try_next().await?.context("a watch must not end")? {
                Event::Init => found.clear(),
                Event::InitApply(object) | Event::Apply(object) => {
                    if wanted(&object) {
                        found.insert(object.name_any());
                    } else {
                        found.remove(&object.name_any());
                    }
                }
                Event::InitDone => listed = true,
                Event::Delete(object) => drop(found.take(&object.name_any())),
            }
        }
        anyhow::Ok(())
    };
    let counted = tokio::time::timeout(TIMEOUT, counting).await;
    counted.with_context(|| format!("{what}: not {count} within {TIMEOUT:?}"))?
}

async fn create_volumes(client: &Client, scale: Scale) -> Result<()> {
    let volumes = scale.names().into_iter().map(|name| {
        object(json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": name},
                "claimRef": {"namespace": NAMESPACE, "name": name}},
        }))
    });
    create(&Api::<PersistentVolume>::all(client.clone()), volumes).await?;
    let claims = scale.names().into_iter().map(|name| {
        object(json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}}},
        }))
    });
    create(
        &Api::<PersistentVolumeClaim>::namespaced(client.clone(), NAMESPACE),
        claims,
    )
    .await
}

/// Creates pods that are assigned to their nodes, so that the scheduler is not measured.
async fn create_pods(client: &Client, scale: Scale) -> Result<()> {
    let pods = (0..scale.volumes).map(|number| {
        let name = volume_name(number);
        object(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": scale.node(number), "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "app", "image": "app",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]},
        }))
    });
    create(&Api::<Pod>::namespaced(client.clone(), NAMESPACE), pods).await
}

fn mk_array(scale: Scale) -> Result<Arc<Driver>> {
    let settings = Settings {
        name: DRIVER.to_owned(),
        array: array::Settings {
            nodes: (0..scale.nodes)
                .map(|number| NodeId::from(scale.node(number)))
                .collect(),
            ..array::Settings::default()
        },
        initial_volumes: scale.volumes as u64,
        ..Settings::default()
    };
    Driver::in_memory(settings).context("start the driver")
}

fn start_attacher(server: &ApiServer, array: &Arc<Driver>) -> Result<JoinSet<Result<(), manager::Error>>> {
    let args = ["csi-attacher", "--worker-threads=100"];
    let args = Args::read(args.map(Into::into)).context("read the attacher's flags")?;
    let environment = Environment {
        access: Access::in_process(server.clone()).context("connect the attacher")?,
        driver: InProcess(services(array)),
        pod: AttacherPod {
            host_name: "bench".to_owned(),
            namespace: None,
            clock: Timestamp::now,
        },
    };
    let mut running = JoinSet::new();
    running.spawn(manager::serve(args, environment, CancellationToken::new()));
    Ok(running)
}
