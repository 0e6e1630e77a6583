use super::*;

fn mk_settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(2),
        ..Settings::default()
    }
}

fn mk_hold() -> Hold {
    Hold {
        capability: Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        readonly: false,
    }
}

fn mk_wanted(name: &str) -> Wanted {
    Wanted {
        name: name.to_owned(),
        size: SizeRange::default(),
        capabilities: vec![mk_hold().capability],
        ..Wanted::default()
    }
}

#[test]
fn ids_depend_on_the_array_and_on_what_it_made_before() {
    let make = |epoch| {
        let mut array = Array::new(mk_settings(), epoch);
        let first = array
            .create_volume(&mk_wanted("a"), Moment::default())
            .unwrap()
            .reply
            .id
            .clone();
        array.delete_volume(first.as_str()).unwrap();
        (
            first,
            array
                .create_volume(&mk_wanted("a"), Moment::default())
                .unwrap()
                .reply
                .id
                .clone(),
        )
    };
    let (first, second) = make(1);
    assert_ne!(first, second);
    assert_eq!(
        make(1),
        (first.clone(), second),
        "the same array makes the same ids"
    );
    assert_ne!(make(2).0, first, "another array makes others");
}

#[test]
fn premade_volumes_are_made_once() {
    let mut array = Array::new(mk_settings(), 1);
    array.premake(3);
    array.delete_volume("vol-1").unwrap();
    let mut array = Array::from_image(mk_settings(), array.image());
    array.premake(5);
    let ids: Vec<_> = array.volumes().map(|volume| volume.spec.id.as_str()).collect();
    assert_eq!(ids, ["vol-0", "vol-2", "vol-3", "vol-4"]);
    array.premake(2);
    assert_eq!(array.volumes().count(), 4, "fewer asked for takes none away");
}

#[test]
fn limit_lowered_below_what_is_attached_refuses_more_and_keeps_what_is() {
    let mut array = Array::new(mk_settings(), 1);
    array.premake(3);
    array.publish("vol-0", "node-0", &mk_hold()).unwrap();
    array.publish("vol-1", "node-0", &mk_hold()).unwrap();
    let mut array = Array::from_image(
        Settings {
            attach_limit: Some(1),
            ..mk_settings()
        },
        array.image(),
    );
    assert_eq!(array.publish("vol-0", "node-0", &mk_hold()).unwrap().change, None);
    let refused = array.publish("vol-2", "node-0", &mk_hold()).unwrap_err();
    assert!(matches!(refused, Error::NodeFull { limit: 1, .. }), "{refused}");
}

#[test]
fn serial_belongs_to_the_volume_whichever_array_has_it() {
    let serial = |epoch| {
        let mut array = Array::new(mk_settings(), epoch);
        array.premake(1);
        array.publish("vol-0", "node-0", &mk_hold()).unwrap().reply.serial
    };
    assert_eq!(serial(1), serial(2));
}

#[test]
fn a_hundred_thousand_volumes_are_listed_without_looking_at_those_before() {
    // Each page costs its own entries: with a cost that grew by the pages before, this would take
    // minutes and not a moment.
    let mut array = Array::new(
        Settings {
            page_limit: Some(10),
            ..mk_settings()
        },
        1,
    );
    array.premake(100_000);
    let (mut count, mut token) = (0, None);
    loop {
        let page = array.list(0, token.as_deref()).unwrap();
        count += page.entries.len();
        token = page.next_token;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(count, 100_000);
}
