//! Snapshots, groups of them, pools and the health of the storage, as tables.

use super::super::table::{Table, size};
use super::Print;
use crate::admin_api::resource::{GroupSnapshot, Page, Pool, Snapshot, Storage, StorageHealthIssue};

impl Print for Page<Snapshot> {
    fn table(&self) -> String {
        snapshots(&self.items).text(Some(self.matched))
    }
}

impl Print for Snapshot {
    fn table(&self) -> String {
        snapshots(std::slice::from_ref(self)).text(None)
    }
}

fn snapshots(snapshots: &[Snapshot]) -> Table {
    let head = [
        "SNAPSHOT",
        "NAME",
        "OF VOLUME",
        "SIZE",
        "POOL",
        "READY",
        "TAKEN",
        "GROUP",
    ];
    let mut table = Table::new(head);
    for snapshot in snapshots {
        table.row([
            snapshot.id.clone(),
            snapshot.name.clone(),
            snapshot.source.clone(),
            size(snapshot.size_bytes),
            snapshot.pool.clone(),
            yes(snapshot.ready),
            snapshot.created.clone(),
            snapshot.group.clone().unwrap_or_default(),
        ]);
    }
    table
}

impl Print for Page<GroupSnapshot> {
    fn table(&self) -> String {
        groups(&self.items).text(Some(self.matched))
    }
}

impl Print for GroupSnapshot {
    fn table(&self) -> String {
        groups(std::slice::from_ref(self)).text(None)
    }
}

fn groups(groups: &[GroupSnapshot]) -> Table {
    let mut table = Table::new(["GROUP", "NAME", "READY", "TAKEN", "SNAPSHOTS"]);
    for group in groups {
        let members = group.snapshots.iter();
        let members: Vec<String> = members
            .map(|snapshot| format!("{} of {}", snapshot.id, snapshot.source))
            .collect();
        table.row([
            group.id.clone(),
            group.name.clone(),
            yes(group.ready),
            group.created.clone(),
            members.join(", "),
        ]);
    }
    table
}

impl Print for Vec<Pool> {
    fn table(&self) -> String {
        pools(self).text(None)
    }
}

impl Print for Pool {
    fn table(&self) -> String {
        pools(std::slice::from_ref(self)).text(None)
    }
}

fn pools(pools: &[Pool]) -> Table {
    let mut table = Table::new(["POOL", "CAPACITY", "USED", "AVAILABLE", "WHERE"]);
    for pool in pools {
        let place = pool.topology.iter().map(|(key, value)| format!("{key}={value}"));
        table.row([
            pool.name.clone(),
            size(pool.capacity_bytes),
            size(pool.used_bytes),
            size(pool.available_bytes),
            place.collect::<Vec<_>>().join(","),
        ]);
    }
    table
}

impl Print for Storage {
    fn table(&self) -> String {
        let mut table = Table::new(["BEHIND", "STATUS", "REASON", "FOR", "MESSAGE"]);
        let own = self.nodes.iter();
        let own = own.flat_map(|own| own.health.iter().map(|issue| (own.node.as_str(), issue)));
        let all = self.health.iter().map(|issue| ("all nodes", issue));
        for (behind, issue) in all.chain(own) {
            let StorageHealthIssue {
                status,
                reason,
                message,
                capability,
            } = issue;
            table.row([
                behind.to_owned(),
                status.clone(),
                reason.clone(),
                capability.clone().unwrap_or_else(|| "every use".to_owned()),
                message.clone(),
            ]);
        }
        if self.health.is_empty() && self.nodes.is_empty() {
            table.row(["all nodes", "healthy", "", "", ""].map(str::to_owned));
        }
        table.text(None)
    }
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}
