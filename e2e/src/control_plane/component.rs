//! The programs of the control plane and their flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::credentials::Credentials;
use super::port::Port;
use crate::kubeconfig;
use crate::process::Spec;

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, the attach/detach controller among them.
    ControllerManager,
    /// A second replica of kube-controller-manager.
    StandbyControllerManager,
    /// The scheduler.
    Scheduler,
}

/// Files and ports of one control plane, which stay the same over restarts of its programs.
#[derive(Debug)]
pub(super) struct Layout {
    executable: PathBuf,
    dir: PathBuf,
    etcd_peers: Port,
    ports: BTreeMap<Component, Port>,
    pub(super) credentials: Credentials,
}

// === impl Component ===

impl Component {
    /// All components, in start order.
    pub const ALL: [Self; 5] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::StandbyControllerManager,
        Self::Scheduler,
    ];

    /// Name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::StandbyControllerManager => "kube-controller-manager-standby",
            Self::Scheduler => "kube-scheduler",
        }
    }

    /// Path of the program's readiness endpoint, and a word that the response must contain.
    ///
    /// kube-controller-manager is healthy before it has built its controllers, and exits if it loses the API server
    /// meanwhile; once all are built, the response has a line for each controller.
    pub(super) fn readiness(self) -> (&'static str, &'static str) {
        match self {
            Self::Etcd | Self::ApiServer | Self::Scheduler => ("/readyz", "ok"),
            Self::StandbyControllerManager => ("/healthz", "ok"),
            Self::ControllerManager => (
                "/healthz?verbose",
                "[+]persistentvolume-attach-detach-controller ok",
            ),
        }
    }

    /// Timeout of the program's graceful shutdown. The API server first completes the requests in flight.
    pub(super) fn grace(self) -> Duration {
        match self {
            Self::ApiServer => Duration::from_secs(20),
            Self::Etcd | Self::ControllerManager | Self::StandbyControllerManager | Self::Scheduler => {
                Duration::from_secs(5)
            }
        }
    }

    /// Whether it is a replica of kube-controller-manager.
    pub(super) fn is_controller_manager(self) -> bool {
        matches!(self, Self::ControllerManager | Self::StandbyControllerManager)
    }

    /// Name of the component's program.
    fn program(self) -> &'static str {
        if self.is_controller_manager() {
            return Self::ControllerManager.name();
        }
        self.name()
    }
}

// === impl Layout ===

impl Layout {
    /// Reserves the ports and writes keys, certificates and kubeconfigs into `dir`.
    pub(super) fn prepare(executable: PathBuf, dir: PathBuf) -> Result<Self> {
        let mut ports = BTreeMap::new();
        for component in Component::ALL {
            let port = Port::reserve().with_context(|| format!("reserve a port for {}", component.name()))?;
            ports.insert(component, port);
        }
        let etcd_peers = Port::reserve().context("reserve a port for etcd's peers")?;
        let credentials = Credentials::generate(&dir)?;
        let layout = Self {
            executable,
            dir,
            etcd_peers,
            ports,
            credentials,
        };
        let Credentials {
            admin,
            controller_manager,
            scheduler,
            ..
        } = &layout.credentials;
        for (user, token) in [
            ("admin", admin),
            (Component::ControllerManager.name(), controller_manager),
            (Component::Scheduler.name(), scheduler),
        ] {
            let cluster = json!({
                "server": layout.url(Component::ApiServer),
                "certificate-authority": layout.credentials.ca,
            });
            kubeconfig::write(&layout.kubeconfig(user), cluster, token)?;
        }
        Ok(layout)
    }

    /// Kubeconfig of `admin` or of a component.
    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    /// Folder with all files.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// File with the log of a component.
    pub(super) fn log(&self, component: Component) -> PathBuf {
        self.dir.join(format!("{}.log", component.name()))
    }

    /// URL of the component.
    pub(super) fn url(&self, component: Component) -> String {
        let scheme = if component == Component::Etcd {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}", self.port(component).address())
    }

    /// The process specification of the component. Flags are close to their defaults and to those that installers set;
    /// later flags override earlier ones, so `extra` can change any of them.
    pub(super) fn spec(&self, component: Component, extra: &[String]) -> Spec {
        let flags = match component {
            Component::Etcd => self.etcd_flags(),
            Component::ApiServer => self.apiserver_flags(),
            Component::ControllerManager | Component::StandbyControllerManager => {
                self.controller_manager_flags(component)
            }
            Component::Scheduler => self.client_flags(component),
        };
        Spec::new(component.name(), &self.executable)
            .arg0(component.program())
            .args(flags)
            .args(extra)
            .dir(&self.dir)
    }

    /// The process specification of etcd-snapshot, which saves and restores snapshots.
    pub(super) fn etcd_snapshot(&self, args: &[&str]) -> Spec {
        Spec::new("etcd-snapshot", &self.executable)
            .arg0("etcd-snapshot")
            .args(args)
            .dir(&self.dir)
    }

    /// etcd's data directory.
    pub(super) fn etcd_data(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// URL on which etcd listens for other members.
    pub(super) fn etcd_peers_url(&self) -> String {
        format!("http://{}", self.etcd_peers.address())
    }

    fn port(&self, component: Component) -> &Port {
        self.ports
            .get(&component)
            .expect("every component must have a port")
    }

    fn etcd_flags(&self) -> Vec<String> {
        let clients = self.url(Component::Etcd);
        let peers = self.etcd_peers_url();
        vec![
            flag("data-dir", path(&self.etcd_data())),
            flag("listen-client-urls", &clients),
            flag("advertise-client-urls", &clients),
            flag("listen-peer-urls", &peers),
            flag("initial-advertise-peer-urls", &peers),
            flag("initial-cluster", &format!("default={peers}")),
            flag("socket-reuse-port", "true"),
            // The data need not survive a crash of the machine, and fsync would only slow the tests down.
            flag("unsafe-no-fsync", "true"),
            flag("log-level", "warn"),
        ]
    }

    fn apiserver_flags(&self) -> Vec<String> {
        let Credentials {
            service_account_key,
            service_account_public_key,
            tokens,
            ..
        } = &self.credentials;
        let mut flags = self.serving_flags(Component::ApiServer);
        flags.extend([
            flag("advertise-address", "127.0.0.1"),
            flag("endpoint-reconciler-type", "none"),
            flag("etcd-servers", &self.url(Component::Etcd)),
            flag("service-cluster-ip-range", "10.96.0.0/16"),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-key-file", path(service_account_public_key)),
            flag("service-account-signing-key-file", path(service_account_key)),
            flag("token-auth-file", path(tokens)),
            flag("authorization-mode", "Node,RBAC"),
            flag("allow-privileged", "true"),
        ]);
        flags
    }

    fn controller_manager_flags(&self, component: Component) -> Vec<String> {
        let Credentials {
            service_account_key,
            ca,
            ..
        } = &self.credentials;
        let mut flags = self.client_flags(component);
        flags.extend([
            flag("controllers", "*"),
            flag("service-account-private-key-file", path(service_account_key)),
            flag("root-ca-file", path(ca)),
            // Each controller uses its own ServiceAccount and roles, as installers configure it.
            flag("use-service-account-credentials", "true"),
            // With the default of 20 requests per second, the controller's throttling would dominate the attacher's
            // latency.
            flag("kube-api-qps", "500"),
            flag("kube-api-burst", "1000"),
        ]);
        flags
    }

    /// Flags of a component that is a client of the API server, and lets it verify its own clients.
    fn client_flags(&self, component: Component) -> Vec<String> {
        let kubeconfig = self.kubeconfig(component.program());
        let mut flags = self.serving_flags(component);
        flags.extend([
            flag("kubeconfig", path(&kubeconfig)),
            flag("authentication-kubeconfig", path(&kubeconfig)),
            flag("authorization-kubeconfig", path(&kubeconfig)),
            flag("leader-elect", "false"),
        ]);
        flags
    }

    fn serving_flags(&self, component: Component) -> Vec<String> {
        let Credentials {
            serving_certificate,
            serving_key,
            ..
        } = &self.credentials;
        vec![
            flag("bind-address", "127.0.0.1"),
            flag("secure-port", &self.port(component).number().to_string()),
            flag("permit-port-sharing", "true"),
            flag("tls-cert-file", path(serving_certificate)),
            flag("tls-private-key-file", path(serving_key)),
        ]
    }
}

fn flag(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}

/// Paths lie in the run's directory, whose name the harness chose.
fn path(path: &Path) -> &str {
    path.to_str().expect("the run's directory must have a UTF-8 name")
}
