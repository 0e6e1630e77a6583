//! A proto file as a flat map, with one entry for each declared name and all its properties, so that a comparison of two maps
//! finds all differences.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, ServiceDescriptor,
};

/// A declaration (`field csi.v1.Volume.volume_id`) and its properties (`number 2, optional string, ...`).
#[derive(Debug, Default)]
pub(crate) struct Facts(BTreeMap<String, String>);

// === impl Facts ===

impl Facts {
    /// All declarations that are visible on the wire, in generated code or by reflection. File options are omitted: they configure
    /// generators of other languages.
    pub(crate) fn of(file: &FileDescriptor) -> Self {
        let mut facts = Self::default();
        let mut imports: Vec<_> = file
            .dependencies()
            .map(|import| import.name().to_owned())
            .collect();
        imports.sort_unstable();
        facts.say(
            "file",
            file.package_name(),
            format!("{:?}, imports {imports:?}", file.syntax()),
        );
        file.services().for_each(|service| facts.service(&service));
        file.messages().for_each(|message| facts.message(&message));
        file.enums()
            .for_each(|enumeration| facts.enumeration(&enumeration));
        file.extensions()
            .for_each(|extension| facts.extension(&extension));
        facts
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Every difference, in the order of the names. Empty if the files are equal.
    pub(crate) fn differences(ours: &Self, official: &Self) -> Vec<String> {
        let names: BTreeSet<_> = ours.0.keys().chain(official.0.keys()).collect();
        names
            .into_iter()
            .filter_map(|name| match (ours.0.get(name), official.0.get(name)) {
                (Some(a), Some(b)) if a == b => None,
                (Some(a), Some(b)) => Some(format!("{name}: ours says {a}; official says {b}")),
                (Some(a), None) => Some(format!("{name}: only ours has it: {a}")),
                (None, Some(b)) => Some(format!("{name}: only official has it: {b}")),
                (None, None) => None,
            })
            .collect()
    }

    fn say(&mut self, what: &str, name: &str, fact: String) {
        let earlier = self.0.insert(format!("{what} {name}"), fact);
        assert_eq!(earlier, None, "{what} {name} must be declared once");
    }

    fn service(&mut self, service: &ServiceDescriptor) {
        self.say("service", service.full_name(), options(&service.options()));
        for method in service.methods() {
            let stream = |yes| if yes { "stream " } else { "" };
            let fact = format!(
                "takes {}{}, returns {}{}, {}",
                stream(method.is_client_streaming()),
                method.input().full_name(),
                stream(method.is_server_streaming()),
                method.output().full_name(),
                options(&method.options()),
            );
            self.say("method", method.full_name(), fact);
        }
    }

    fn message(&mut self, message: &MessageDescriptor) {
        let fact = format!(
            "reserved {:?} {:?}, extensions {:?}, {}",
            message.reserved_ranges().collect::<Vec<_>>(),
            message.reserved_names().collect::<Vec<_>>(),
            message.extension_ranges().collect::<Vec<_>>(),
            options(&message.options()),
        );
        self.say("message", message.full_name(), fact);
        for field in message.fields() {
            self.say("field", field.full_name(), field_fact(&field));
        }
        for oneof in message.oneofs() {
            let members: Vec<_> = oneof.fields().map(|field| field.name().to_owned()).collect();
            self.say(
                "oneof",
                oneof.full_name(),
                format!("{members:?}, {}", options(&oneof.options())),
            );
        }
        message.child_messages().for_each(|child| self.message(&child));
        message.child_enums().for_each(|child| self.enumeration(&child));
        message
            .child_extensions()
            .for_each(|child| self.extension(&child));
    }

    fn enumeration(&mut self, enumeration: &EnumDescriptor) {
        let fact = format!(
            "reserved {:?} {:?}, {}",
            enumeration.reserved_ranges().collect::<Vec<_>>(),
            enumeration.reserved_names().collect::<Vec<_>>(),
            options(&enumeration.options()),
        );
        self.say("enum", enumeration.full_name(), fact);
        for value in enumeration.values() {
            // The scope of a value's full name is that of its enum, not the enum.
            let name = format!("{}.{}", enumeration.full_name(), value.name());
            self.say(
                "value",
                &name,
                format!("number {}, {}", value.number(), options(&value.options())),
            );
        }
    }

    fn extension(&mut self, extension: &ExtensionDescriptor) {
        let fact = format!(
            "extends {}, number {}, {}, {}",
            extension.containing_message().full_name(),
            extension.number(),
            type_fact(extension.cardinality(), &extension.kind()),
            options(&extension.options()),
        );
        self.say("extension", extension.full_name(), fact);
    }
}

fn field_fact(field: &FieldDescriptor) -> String {
    format!(
        "number {}, {}, json {}, oneof {:?}, presence {}, packed {}, {}",
        field.number(),
        type_fact(field.cardinality(), &field.kind()),
        field.json_name(),
        field.containing_oneof().map(|oneof| oneof.name().to_owned()),
        field.supports_presence(),
        field.is_packed(),
        options(&field.options()),
    )
}

fn type_fact(cardinality: Cardinality, kind: &Kind) -> String {
    let name = if let Kind::Message(message) = kind {
        format!("message {}", message.full_name())
    } else if let Kind::Enum(enumeration) = kind {
        format!("enum {}", enumeration.full_name())
    } else {
        format!("{kind:?}")
    };
    format!("{cardinality:?} {name}")
}

/// Standard options, extensions such as `csi_secret`, and options without a definition in the file.
fn options(options: &DynamicMessage) -> String {
    let mut set: Vec<String> = options
        .fields()
        .map(|(field, value)| format!("{}={value:?}", field.name()))
        .chain(
            options
                .extensions()
                .map(|(extension, value)| format!("({})={value:?}", extension.full_name())),
        )
        .chain(
            options
                .unknown_fields()
                .map(|unknown| format!("unknown {unknown:?}")),
        )
        .collect();
    set.sort_unstable();
    format!("options {set:?}")
}
