//! Reconnects of drivers with and without publish calls.

use super::*;
use crate::controller::state::Event;
use crate::controller::state::reconcile::tests::{Fixture, attached, newer};
use crate::model::Version;
use crate::plan::Operation;
use crate::plan::tests::{mk_attachment, mk_volume};

#[test]
fn losing_publish_calls_requires_no_work_and_regaining_them_restores_a_finalizer() {
    let va = attached("va");
    let mut fixture = Fixture::new([va.clone()]);
    fixture.capabilities(|c| c.publish = false);
    assert!(fixture.start().is_none());
    let without = Attachment {
        finalizer: false,
        ..newer(&va)
    };
    fixture.put(without.clone());
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
fn losing_publish_calls_keeps_the_pv_finalizer() {
    let mut fixture = Fixture::new([]);
    let volume = crate::model::Volume {
        finalizer: true,
        version: Version(2),
        ..mk_volume("pv")
    };
    fixture.state.handle(Event::Volumes(Change::Applied(volume)));
    assert!(fixture.start().is_none(), "the PersistentVolume is not deleting");
    fixture.capabilities(|c| c.publish = false);
    assert!(fixture.start().is_none());
}
