//! The queries of lists, shared by server, client and `ctl`.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

macro_rules! queries {
    ($($(#[$doc:meta])* $query:ident { $($(#[$about:meta])* $field:ident: $type:ident,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Args, Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub struct $query {
            $($(#[$about])* #[arg(long)] pub $field: Option<$type>,)+
            /// Maximum number of items, 1 to 1000. Default: 100.
            #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
            pub limit: Option<usize>,
        }
    )+};
}

queries! {
    /// Filter of volumes.
    VolumeQuery {
        /// Items whose id or name contains this text.
        search: String,
        /// Volumes attached to this node.
        node: String,
        /// `true` for attached volumes, `false` for detached ones.
        attached: bool,
        /// Continue after this id.
        after: String,
    }

    /// Filter of snapshots.
    SnapshotQuery {
        /// Items whose id or name contains this text.
        search: String,
        /// Those of this volume.
        source: String,
        /// Snapshots of this group.
        group: String,
        /// Continue after this id.
        after: String,
    }

    /// Filter of group snapshots.
    GroupQuery {
        /// Items whose id or name contains this text.
        search: String,
        /// Groups with a snapshot of this source volume.
        source: String,
        /// Continue after this id.
        after: String,
    }

    /// Filter of nodes.
    NodeQuery {
        /// Nodes whose id contains this text.
        search: String,
        /// `true` for nodes with attached volumes, `false` for the others.
        attached: bool,
        /// Continue after this id.
        after: String,
    }

    /// Filter of attachments.
    AttachmentQuery {
        /// Those of this volume, by its id or name.
        volume: String,
        /// Attachments to this node.
        node: String,
        /// Continue after this value of `next`, or after this volume id.
        after: String,
    }
}

/// How to apply a fault file.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct FileQuery {
    /// `true` only checks the file.
    pub(crate) dry_run: Option<bool>,
}

macro_rules! queries_of_calls {
    ($($(#[$doc:meta])* $query:ident { $($(#[$about:meta])* $field:ident: $type:ident,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Deserialize, IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $query {
            /// Calls of this method, with or without its service.
            pub(crate) method: Option<String>,
            /// Calls with this code, such as `NOT_FOUND`; `!OK` for all errors.
            pub(crate) code: Option<String>,
            /// Calls whose volume id, snapshot id or name matches this pattern with `*` and `?`.
            pub(crate) volume: Option<String>,
            /// Calls whose node id matches this pattern.
            pub(crate) node: Option<String>,
            /// Calls that a fault rule whose id matches this pattern affected.
            pub(crate) fault: Option<String>,
            /// Calls with a sequence number above this.
            pub(crate) after: Option<u64>,
            $($(#[$about])* pub(crate) $field: Option<$type>,)+
        }
    )+};
}

queries_of_calls! {
    /// Filter of finished calls.
    JournalQuery {
        /// Calls with a sequence number below this.
        before: u64,
        /// Maximum number of items, 1 to 1000. Default: 100.
        limit: usize,
        /// `true` for the newest first.
        newest: bool,
        /// `false` omits requests and responses.
        messages: bool,
    }

    /// Filter of calls to wait for.
    WaitQuery {
        /// `true` waits for in-flight calls instead of finished ones.
        running: bool,
        /// Number of calls to wait for. Default: 1.
        count: usize,
        /// Timeout, such as `10s`. Default: 30s.
        timeout: String,
    }
}

/// Of a reset.
#[derive(Args, Clone, Copy, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ResetQuery {
    /// First unpublish and unstage the volumes that the driver's own node uses.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub force: Option<bool>,
}
