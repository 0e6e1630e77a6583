//! Drivers that come back with calls, or without.

use super::*;
use crate::controller::state::reconcile::tests::{Bench, attached, newer};
use crate::controller::state::{Event, Item};
use crate::model::Version;
use crate::plan::tests::{mk_attachment, mk_volume};

#[test]
fn a_driver_without_calls_lets_go_of_everything_and_one_with_calls_takes_it_back() {
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
fn what_is_being_attached_without_a_call_when_the_driver_gets_calls_is_attached_again() {
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
fn a_volume_is_let_go_of_at_once_by_a_driver_without_calls() {
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
