//! The requests, one row each: visibility, HTTP method, path, the function with the parts of the path, the reply, and the query or
//! body. A test compares the rows with the routes of the server.

use serde::Serialize;
use serde_json::Value;

use super::super::resource::{
    Attach, Attachment, BackendFault, Call, Capability, CapabilityChange, Expectation, ExpectationResult,
    FaultChange, FaultRule, Faults, GroupSnapshot, GroupSnapshotNew, Info, Node, NodeChange, NodeNew, Page,
    Pool, PoolChange, Released, Scenario, Snapshot, SnapshotNew, Storage, StorageChange, StorageHealthIssue,
    Volume, VolumeChange, VolumeNew,
};
use super::{Calls, Client, Error};

macro_rules! requests {
    ($($(#[$doc:meta])* $vis:vis $method:ident $path:literal $name:ident($($part:ident),*) -> $reply:ty
        $(, query $query:ident: $query_type:ty $(= $pairs:expr)?)? $(, body $body:ident: $body_type:ty $(= $sent:expr)?)?;)+) => {
        impl Client {$(
            $(#[$doc])*
            $vis async fn $name(&self, $($part: &str,)* $($query: $query_type)? $($body: $body_type)?) -> Result<$reply, Error> {
                let query: &[(&str, String)] = requests!(@given &[] $(, $query $(, $pairs)?)?);
                let body = requests!(@given &NoFields {} $(, $body $(, &$sent)?)?);
                self.request(http::Method::$method, $path, &[$($part),*], query, body).await
            }
        )+}

        /// Methods and paths of all requests.
        #[cfg(test)]
        pub(crate) const REQUESTS: &[(&str, &str)] = &[$((stringify!($method), $path)),+];
    };
    (@given $default:expr) => { $default };
    (@given $default:expr, $given:expr) => { $given };
    (@given $default:expr, $given:expr, $converted:expr) => { $converted };
}

/// The body of a request without fields.
#[derive(Serialize)]
struct NoFields {}

requests! {
    /// Reads the driver information.
    pub GET "/info" info() -> Info;

    /// Lists volumes; the query has the query parameters of the route.
    pub GET "/volumes" volumes() -> Page<Volume>, query query: &[(&str, String)];
    /// Reads a volume.
    pub GET "/volumes/{volume}" volume(volume) -> Volume;
    /// Creates a volume.
    pub POST "/volumes" create_volume() -> Volume, body new: &VolumeNew;
    /// Changes a volume.
    pub PATCH "/volumes/{volume}" change_volume(volume) -> Volume, body change: &VolumeChange;
    /// Deletes a volume.
    pub DELETE "/volumes/{volume}" delete_volume(volume) -> ();

    /// Lists nodes; the query has the query parameters of the route.
    pub GET "/nodes" nodes() -> Page<Node>, query query: &[(&str, String)];
    /// Reads a node.
    pub GET "/nodes/{node}" node(node) -> Node;
    /// Registers a node.
    pub POST "/nodes" register_node() -> Node, body new: &NodeNew;
    /// Changes a node.
    pub PATCH "/nodes/{node}" change_node(node) -> Node, body change: &NodeChange;
    /// Deregisters a node. Its volumes stay attached.
    pub DELETE "/nodes/{node}" remove_node(node) -> ();

    /// Lists attachments; the query has the query parameters of the route.
    pub GET "/attachments" attachments() -> Page<Attachment>, query query: &[(&str, String)];
    /// Attaches a volume out of band.
    pub PUT "/attachments/{volume}/{node}" attach(volume, node) -> Attachment, body attach: &Attach;
    /// Detaches a volume out of band: the attacher does not see it.
    pub DELETE "/attachments/{volume}/{node}" detach(volume, node) -> ();

    /// Lists snapshots; the query has the query parameters of the route.
    pub GET "/snapshots" snapshots() -> Page<Snapshot>, query query: &[(&str, String)];
    /// Reads a snapshot.
    pub GET "/snapshots/{snapshot}" snapshot(snapshot) -> Snapshot;
    /// Creates a snapshot.
    pub POST "/snapshots" create_snapshot() -> Snapshot, body new: &SnapshotNew;
    /// Deletes a snapshot.
    pub DELETE "/snapshots/{snapshot}" delete_snapshot(snapshot) -> ();

    /// Lists group snapshots; the query has the query parameters of the route.
    pub GET "/group-snapshots" group_snapshots() -> Page<GroupSnapshot>, query query: &[(&str, String)];
    /// Reads a group snapshot.
    pub GET "/group-snapshots/{group}" group_snapshot(group) -> GroupSnapshot;
    /// Creates a group snapshot.
    pub POST "/group-snapshots" create_group_snapshot() -> GroupSnapshot, body new: &GroupSnapshotNew;
    /// Deletes a group snapshot with its snapshots.
    pub DELETE "/group-snapshots/{group}" delete_group_snapshot(group) -> ();

    /// Lists the storage pools with their usage.
    pub GET "/pools" pools() -> Vec<Pool>;
    /// Reads a pool.
    pub GET "/pools/{pool}" pool(pool) -> Pool;
    /// Resizes a pool.
    pub PATCH "/pools/{pool}" resize_pool(pool) -> Pool, body capacity_bytes: u64 = PoolChange { capacity_bytes };

    /// Reads the health issues of the storage of nodes.
    pub GET "/storage" storage() -> Storage;
    /// Sets the health issues of the storage of all nodes; none means healthy.
    pub PATCH "/storage" set_storage_health() -> Storage, body health: Vec<StorageHealthIssue> = StorageChange { health };

    /// Lists all capabilities.
    pub GET "/capabilities" capabilities() -> Vec<Capability>;
    /// Enables or disables a capability.
    pub PUT "/capabilities/{capability}" set_capability(capability) -> Capability, body enabled: bool = CapabilityChange { enabled };

    /// Lists the fault rules with their counters.
    pub GET "/faults" faults() -> Faults;
    /// Creates or replaces a fault rule, written as in the fault file.
    pub POST "/faults" put_fault() -> FaultRule, body rule: &Value;
    /// Deletes all fault rules that were set at run time.
    pub DELETE "/faults" clear_faults() -> ();
    /// Enables or disables a fault rule.
    pub PATCH "/faults/{rule}" set_fault(rule) -> FaultRule, body enabled: bool = FaultChange { enabled };
    /// Deletes a fault rule.
    pub DELETE "/faults/{rule}" remove_fault(rule) -> ();
    /// Releases the calls that a fault rule blocks.
    pub POST "/faults/{rule}/release" release_fault(rule) -> Released;
    /// Resets the counters of all fault rules.
    pub POST "/faults/reset" reset_faults() -> Faults;
    /// Applies a fault file atomically.
    pub(crate) POST "/scripts" put_fault_file() -> Faults, body file: &Value;

    /// Lists the backend faults.
    pub GET "/backend-faults" backend_faults() -> Vec<BackendFault>;
    /// Creates or replaces a backend fault, written as in the fault file.
    pub POST "/backend-faults" put_backend_fault() -> BackendFault, body fault: &Value;
    /// Enables or disables a backend fault.
    pub PATCH "/backend-faults/{fault}" set_backend_fault(fault) -> BackendFault, body enabled: bool = FaultChange { enabled };
    /// Deletes a backend fault.
    pub DELETE "/backend-faults/{fault}" remove_backend_fault(fault) -> ();

    /// Lists the built-in scenarios.
    pub GET "/scenarios" scenarios() -> Vec<Scenario>;
    /// Starts or stops a scenario.
    pub PUT "/scenarios/{scenario}" set_scenario(scenario) -> Scenario, body enabled: bool = FaultChange { enabled };

    /// Exports the state of the array as a fixture.
    pub GET "/fixture" export() -> Value;
    /// Replaces the state of the array by a fixture.
    pub PUT "/fixture" import() -> (), body fixture: &Value;
    /// Returns the driver to the state after its start.
    pub POST "/reset" reset() -> ();

    /// Lists the finished calls in memory.
    pub GET "/journal" journal() -> Page<Call>, query calls: &Calls = &calls.0;
    /// Clears the journal in memory.
    pub DELETE "/journal" clear_journal() -> ();
    /// Waits until there are calls; see [`Client::wait`].
    pub(super) GET "/journal/wait" wait_for() -> Vec<Call>, query calls: &Calls = &calls.0;
    /// Compares the finished calls with the expected ones.
    ///
    /// # Errors
    /// As for every request: [`Error`]. Other calls than expected are no error but a [`ExpectationResult`].
    pub POST "/journal/assert" assert_calls() -> ExpectationResult, body expectation: &Expectation;
    /// Lists the in-flight calls.
    pub GET "/calls" running() -> Vec<Call>;
}

impl Client {
    /// As [`Client::reset`], after the volumes that the driver's own node uses were unpublished and unstaged.
    pub async fn force_reset(&self) -> Result<(), Error> {
        let force = [("force", "true".to_owned())];
        self.request(http::Method::POST, "/reset", &[], &force, &NoFields {})
            .await
    }
}
