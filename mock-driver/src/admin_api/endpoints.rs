//! The endpoints of the admin API: one table, of which the server, its OpenAPI document and the client are made.
//!
//! A row has the documentation, the HTTP method and the path, the handler below `admin::route`, the status of a success, and the
//! client's function with the parts of the path, each with its name and description. `with` is followed by the query, `sends` by
//! the body, `sets` by a body with one field, and `text` by a body of any JSON with its description, `whole` by one that must
//! not be empty. `as` is a reply of any JSON; a status 204 has none.

/// Passes the table to a macro. `of_process` are the endpoints that every process serves, `of_array` those of a process with an array.
macro_rules! endpoints {
    ($of:ident) => {
        $of! {
            of_process {
                "driver" {
                    /// Driver version and configuration.
                    pub get "/info" info::info 200, info() -> Info;
                }
                "capabilities" {
                    /// Lists all capabilities, enabled or not.
                    pub get "/capabilities" capability::list 200, capabilities() -> Vec<Capability>;
                    /// Enables or disables a capability at run time, like an upgrade of the driver.
                    pub put "/capabilities/{capability}" capability::change 200,
                        set_capability(capability "capability" "Its name.") sets CapabilityChange { enabled: bool } -> Capability;
                }
                "faults" {
                    /// Lists rules in evaluation order, with their counters.
                    pub get "/faults" fault::list 200, faults() -> Faults;
                    /// Creates or replaces a rule; a new one precedes the rules of file and scenario. ALREADY_EXISTS if the id belongs
                    /// to one of those.
                    pub post "/faults" fault::put 201, put_fault()
                        text Value (content = Object, description = "A rule, written as in the fault file but in JSON.") -> FaultRule;
                    /// Deletes all rules that were set at run time. Those of the file and of scenarios stay.
                    pub delete "/faults" fault::clear 204, clear_faults();
                    /// Deletes a rule of any origin and releases the calls that it blocks.
                    pub delete "/faults/{rule}" fault::remove 204, remove_fault(rule "rule" "Its id.");
                    /// Enables or disables a rule. Disabling releases the calls that it blocks.
                    pub patch "/faults/{rule}" fault::switch 200,
                        set_fault(rule "rule" "Its id.") sets FaultChange { enabled: bool } -> FaultRule;
                    /// Releases the calls that a rule blocks (`action.hang: release`).
                    pub post "/faults/{rule}/release" fault::release 200, release_fault(rule "rule" "Its id.") -> Released;
                    /// Resets counters, state, and whether each rule is enabled.
                    pub post "/faults/reset" fault::reset 200, reset_faults() -> Faults;
                    /// Applies a fault file atomically: creates or replaces its rules and backend faults.
                    /// ALREADY_EXISTS if an id belongs to `--faults` or a scenario.
                    pub(crate) post "/scripts" fault::put_file 200, put_fault_file() with FileQuery
                        text Value (content((Object = "application/json"), (Object = "application/yaml")),
                            description = "A fault file: a list of rules, or lists of `rules` and `backend-faults`.") -> Faults;
                    /// Lists all backend faults, enabled or not.
                    pub get "/backend-faults" backend_fault::list 200, backend_faults() -> Vec<BackendFault>;
                    /// Creates or replaces a backend fault. ALREADY_EXISTS if the id belongs to the fault file or a scenario.
                    pub post "/backend-faults" backend_fault::put 201, put_backend_fault()
                        text Value (content = Object, description = "A backend fault, as in the fault file but in JSON.") -> BackendFault;
                    /// Deletes a backend fault of any origin.
                    pub delete "/backend-faults/{fault}" backend_fault::remove 204,
                        remove_backend_fault(fault "fault" "Id of the backend fault.");
                    /// Enables or disables a backend fault.
                    pub patch "/backend-faults/{fault}" backend_fault::switch 200,
                        set_backend_fault(fault "fault" "Id of the backend fault.") sets FaultChange { enabled: bool } -> BackendFault;
                    /// Lists the built-in scenarios, active or not.
                    pub get "/scenarios" scenario::list 200, scenarios() -> Vec<Scenario>;
                    /// Starts or stops a scenario: adds or removes its rules and backend faults.
                    pub put "/scenarios/{scenario}" scenario::switch 200,
                        set_scenario(scenario "scenario" "Its name.") sets FaultChange { enabled: bool } -> Scenario;
                }
                "tests" {
                    /// Returns to the state after the start: array, rules, scenarios, capabilities and journal. Releases blocked calls.
                    pub post "/reset" fixture::reset 204, reset() with ResetQuery;
                }
                "calls" {
                    /// Lists the finished calls in memory, in order of their end.
                    pub get "/journal" journal::list 200, journal() with JournalQuery -> Page<Call>;
                    /// Clears the journal in memory. Metrics, the journal file and in-flight calls are kept.
                    pub delete "/journal" journal::clear 204, clear_journal();
                    /// Waits for calls: returns 200 with them, 504 on timeout, or 409 if they may be among calls that the journal has dropped.
                    pub(super) get "/journal/wait" journal::wait 200, wait_for() with WaitQuery -> Vec<Call>;
                    /// Compares the finished calls with the expected ones. Waits for missing calls if a timeout is given. The response is
                    /// 200 for every status, and 409 if the journal has dropped calls that it must compare.
                    pub post "/journal/assert" journal::assert 200, assert_calls() sends Expectation -> ExpectationResult;
                    /// Lists in-flight calls, oldest first, each with the rule that blocks it.
                    pub get "/calls" journal::running 200, running() -> Vec<Call>;
                }
            }
            of_array {
                "volumes" {
                    /// Lists volumes, sorted by id.
                    pub get "/volumes" volume::list 200, volumes() with VolumeQuery -> Page<Volume>;
                    /// Creates a volume; idempotent by name, as CreateVolume.
                    pub post "/volumes" volume::create 201, create_volume() sends VolumeNew -> Volume;
                    /// Reads a volume.
                    pub get "/volumes/{volume}" volume::get 200, volume(volume "volume" "Its id or name.") -> Volume;
                    /// Updates a volume: size, mutable parameters, health. The whole update is validated before any part
                    /// takes effect.
                    pub patch "/volumes/{volume}" volume::change 200,
                        change_volume(volume "volume" "Its id or name.") sends VolumeChange -> Volume;
                    /// Deletes a detached volume.
                    pub delete "/volumes/{volume}" volume::delete 204, delete_volume(volume "volume" "Its id or name.");
                }
                "snapshots" {
                    /// Lists snapshots, sorted by id.
                    pub get "/snapshots" snapshot::list 200, snapshots() with SnapshotQuery -> Page<Snapshot>;
                    /// Creates a snapshot; idempotent by name, as CreateSnapshot.
                    pub post "/snapshots" snapshot::create 201, create_snapshot() sends SnapshotNew -> Snapshot;
                    /// Reads a snapshot.
                    pub get "/snapshots/{snapshot}" snapshot::get 200, snapshot(snapshot "snapshot" "Its id or name.") -> Snapshot;
                    /// Deletes a snapshot that is not part of a group.
                    pub delete "/snapshots/{snapshot}" snapshot::delete 204,
                        delete_snapshot(snapshot "snapshot" "Its id or name.");
                    /// Lists group snapshots, sorted by id, each with its snapshots.
                    pub get "/group-snapshots" group::list 200, group_snapshots() with GroupQuery -> Page<GroupSnapshot>;
                    /// Creates a group snapshot; idempotent by name, as CreateVolumeGroupSnapshot.
                    pub post "/group-snapshots" group::create 201, create_group_snapshot() sends GroupSnapshotNew -> GroupSnapshot;
                    /// Reads a group snapshot with its snapshots.
                    pub get "/group-snapshots/{group}" group::get 200,
                        group_snapshot(group "group" "Its id or name.") -> GroupSnapshot;
                    /// Deletes a group snapshot with its snapshots, unless volumes depend on one of them.
                    pub delete "/group-snapshots/{group}" group::delete 204,
                        delete_group_snapshot(group "group" "Its id or name.");
                }
                "tests" {
                    /// Exports the state of the array as a fixture.
                    pub get "/fixture" fixture::export 200, export() as Value Object;
                    /// Replaces the state of the array by a fixture. FAILED_PRECONDITION if the node of this process uses a volume.
                    pub put "/fixture" fixture::import 204, import() whole Image (content = Object);
                }
                "storage" {
                    /// Lists the storage pools with their usage, sorted by name.
                    pub get "/pools" pool::list 200, pools() -> Vec<Pool>;
                    /// Reads a pool.
                    pub get "/pools/{pool}" pool::get 200, pool(pool "pool" "Its name.") -> Pool;
                    /// Resizes a pool; not below its allocated bytes.
                    /// GetCapacity reports the new size immediately.
                    pub patch "/pools/{pool}" pool::change 200,
                        resize_pool(pool "pool" "Its name.") sets PoolChange { capacity_bytes: u64 } -> Pool;
                    /// Lists the health issues of the storage of all nodes, and of single nodes, sorted by id.
                    pub get "/storage" storage::get 200, storage() -> Storage;
                    /// Sets the health issues of the storage of all nodes. Those of one node are set with the node.
                    pub patch "/storage" storage::change 200,
                        set_storage_health() sets StorageChange { health: Vec<StorageHealthIssue> } -> Storage;
                }
                "nodes" {
                    /// Lists nodes, sorted by id, each with its first volumes.
                    pub get "/nodes" node::list 200, nodes() with NodeQuery -> Page<Node>;
                    /// Registers a node.
                    pub post "/nodes" node::register 201, register_node() sends NodeNew -> Node;
                    /// Reads a node with all of its volumes, also a deregistered one that is not listed.
                    pub get "/nodes/{node}" node::get 200, node(node "node" "Its id.") -> Node;
                    /// Updates a node: storage health, limits, topology, registration, id. The whole update is
                    /// validated before any part takes effect. A deregistered node is listed as long as volumes are attached to it.
                    pub patch "/nodes/{node}" node::change 200, change_node(node "node" "Its id.") sends NodeChange -> Node;
                    /// Deregisters a node. Its volumes stay attached until they are detached.
                    pub delete "/nodes/{node}" node::remove 204, remove_node(node "node" "Its id.");
                }
                "attachments" {
                    /// Lists attachments, sorted by volume and node.
                    pub get "/attachments" attachment::list 200, attachments() with AttachmentQuery -> Page<Attachment>;
                    /// Attaches a volume out of band. The array enforces attach limits, access modes and registered nodes.
                    pub put "/attachments/{volume}/{node}" attachment::attach 200,
                        attach(volume "volume" "The volume's id or name.", node "node" "The node's id.") sends Attach -> Attachment;
                    /// Detaches a volume out of band: the attacher does not see it.
                    pub delete "/attachments/{volume}/{node}" attachment::detach 204,
                        detach(volume "volume" "The volume's id or name.", node "node" "The node's id.");
                }
            }
        }
    };
}

pub(crate) use endpoints;
