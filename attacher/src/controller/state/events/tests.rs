//! Reconnects of drivers with and without publish calls.

use super::*;
use crate::controller::state::reconcile::tests::{Fixture, attached, newer};
use crate::controller::state::{Event, Item};
use crate::model::Version;
use crate::plan::tests::{mk_attachment, mk_volume};

#[test]
fn removes_finalizers_without_publish_calls_and_restores_them_with() {
    let va = attached("va");
    let mut fixture = Fixture::new([va.clone()]);
    fixture.capabilities(|c| c.publish = false);
    let item = fixture.start().expect("our finalizer must be removed");
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
    fixture.put(without.clone());
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none());

    fixture.capabilities(|c| c.publish = true);
    let item = fixture.start().expect("our finalizer must be added again");
    fixture.put(Attachment {
        finalizer: true,
        ..newer(&without)
    });
    fixture.finish(&item, Ok(()));
    assert!(fixture.start().is_none(), "once is enough");
}

#[test]
fn republishes_if_driver_gets_publish_calls_during_an_attach() {
    let mut fixture = Fixture::new([]);
    fixture.capabilities(|c| c.publish = false);
    let va = mk_attachment("va");
    fixture.put(va.clone());
    let item = fixture.start().expect("it must be marked attached");
    fixture.capabilities(|c| c.publish = true);
    let marked = Attachment {
        attached: true,
        ..newer(&va)
    };
    fixture.put(marked);
    fixture.finish(&item, Ok(()));
    fixture.starts(Operation::Attach);
}

#[test]
fn removes_pv_finalizer_if_driver_has_no_publish_calls() {
    let mut fixture = Fixture::new([]);
    let volume = crate::model::Volume {
        finalizer: true,
        version: Version(2),
        ..mk_volume("pv")
    };
    fixture.state.handle(Event::Volumes(Change::Applied(volume)));
    assert!(fixture.start().is_none(), "the PersistentVolume is not deleting");
    fixture.capabilities(|c| c.publish = false);
    assert!(matches!(fixture.start(), Some(Item::Volume(_))));
}
