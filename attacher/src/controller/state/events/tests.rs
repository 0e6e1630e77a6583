//! Drivers that reconnect with publish calls, or without.

use super::*;
use crate::controller::state::reconcile::tests::{Bench, attached, newer};
use crate::controller::state::{Event, Item};
use crate::model::Version;
use crate::plan::tests::{mk_attachment, mk_volume};

#[test]
fn removes_finalizers_without_publish_calls_and_restores_them_with() {
    let va = attached("va");
    let mut bench = Bench::new([va.clone()]);
    bench.capabilities(|c| c.publish = false);
    let item = bench.start().expect("our finalizer must come off");
    assert!(matches!(
        item,
        Item::Attachment {
            operation: Operation::Attach,
            ..
        }
    ));
    let without = Attachment {
        finalizer: false,
        ..newer(&va)
    };
    bench.put(without.clone());
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none());

    bench.capabilities(|c| c.publish = true);
    let item = bench.start().expect("our finalizer must be put back");
    bench.put(Attachment {
        finalizer: true,
        ..newer(&without)
    });
    bench.finish(&item, Ok(()));
    assert!(bench.start().is_none(), "once is enough");
}

#[test]
fn republishes_if_driver_gets_publish_calls_during_an_attach() {
    let mut bench = Bench::new([]);
    bench.capabilities(|c| c.publish = false);
    let va = mk_attachment("va");
    bench.put(va.clone());
    let item = bench.start().expect("it must be marked attached");
    bench.capabilities(|c| c.publish = true);
    let marked = Attachment {
        attached: true,
        ..newer(&va)
    };
    bench.put(marked);
    bench.finish(&item, Ok(()));
    bench.starts(Operation::Attach);
}

#[test]
fn removes_pv_finalizer_if_driver_has_no_publish_calls() {
    let mut bench = Bench::new([]);
    let volume = crate::model::Volume {
        finalizer: true,
        version: Version(2),
        ..mk_volume("pv")
    };
    bench.state.handle(Event::Volumes(Change::Applied(volume)));
    assert!(bench.start().is_none(), "it lives");
    bench.capabilities(|c| c.publish = false);
    assert!(matches!(bench.start(), Some(Item::Volume(_))));
}
