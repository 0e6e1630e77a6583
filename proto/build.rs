//! Compiles the proto files with protox (no protoc needed) and writes, beside what prost and tonic generate,
//! the code that keeps `csi_secret` fields out of logs. Which fields are secret is read from the descriptors.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use protox::{
    Compiler,
    prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor},
};

const PROTO_FILES: [&str; 2] = ["csi/csi.proto", "pluginregistration/api.proto"];

/// The field that drivers before CSI 1.13 have under a number that 1.13 reserves.
const VOLUME_CONDITION: &str = "// The condition of a volume before CSI 1.13.
message VolumeCondition {
  // Whether something is wrong.
  bool abnormal = 1;

  // What is known about it.
  string message = 2;
}
";

/// The first lines of the messages that had this field.
const HAD_VOLUME_CONDITION: [&str; 2] = ["message VolumeStatus {", "message NodeGetVolumeStatsResponse {"];

/// Proto package, and the file that its `Secrets` and `Debug` implementations go to.
const PACKAGES: [(&str, &str); 2] = [
    ("csi.v1", "csi.v1.secret.rs"),
    ("pluginregistration", "pluginregistration.secret.rs"),
];

const SECRET_OPTION: &str = "csi.v1.csi_secret";

/// The fields with the option `csi_secret`.
struct SecretFields(Vec<FieldDescriptor>);

fn main() -> Result<(), Box<dyn Error>> {
    for file in PROTO_FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo must set OUT_DIR for build scripts")?);

    let files = out.join("proto");
    for file in PROTO_FILES {
        let copy = files.join(file);
        fs::create_dir_all(copy.parent().ok_or("a file must have a directory")?)?;
        fs::write(copy, with_volume_condition(&fs::read_to_string(file)?)?)?;
    }
    // The comments are wanted as rustdoc, but not in the descriptors that end up in programs.
    let documented = compile(&files, true)?;
    let plain = compile(&files, false)?;
    fs::write(out.join("descriptors.binpb"), plain.encode_file_descriptor_set())?;

    let pool = plain.descriptor_pool();
    let secret = SecretFields::find(&pool)?;
    for (package, file) in PACKAGES {
        fs::write(out.join(file), secret.render_package(&pool, package)?)?;
    }
    tonic_prost_build::configure()
        .build_transport(false)
        // A method that a server does not offer answers UNIMPLEMENTED, as CSI wants it.
        .generate_default_stubs(true)
        .skip_debug(
            secret
                .0
                .iter()
                .map(|field| format!(".{}", field.parent_message().full_name())),
        )
        .compile_fds(documented.file_descriptor_set())?;
    Ok(())
}

/// Adds [`VOLUME_CONDITION`] to the messages of CSI that had it.
fn with_volume_condition(proto: &str) -> Result<String, String> {
    if !proto.contains("package csi.v1;") {
        return Ok(proto.to_owned());
    }
    let mut text = format!("{proto}\n{VOLUME_CONDITION}");
    for begin in HAD_VOLUME_CONDITION {
        let mut parts = text.split(begin);
        let mut changed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let field = part.trim_start().strip_prefix("reserved 2;");
            let rest = field.ok_or_else(|| format!("{begin} must reserve the number 2 first"))?;
            changed.push_str(begin);
            changed.push_str("\n// Only with the capability VOLUME_CONDITION of a driver before CSI 1.13.\n");
            changed.push_str("VolumeCondition volume_condition = 2;");
            changed.push_str(rest);
        }
        text = changed;
    }
    Ok(text)
}

fn compile(files: &Path, source_info: bool) -> Result<Compiler, protox::Error> {
    let mut compiler = Compiler::new([files])?;
    compiler
        .include_imports(true)
        .include_source_info(source_info)
        .open_files(PROTO_FILES)?;
    Ok(compiler)
}

// === impl SecretFields ===

impl SecretFields {
    /// # Errors
    /// When the generated code would not hide a secret, because of its type or because its message is not a
    /// request of its own.
    fn find(pool: &DescriptorPool) -> Result<Self, Box<dyn Error>> {
        let option = pool
            .get_extension_by_name(SECRET_OPTION)
            .ok_or_else(|| format!("{SECRET_OPTION} must be defined: the secret fields are found by it"))?;
        let (secret, plain): (Vec<_>, Vec<_>) = all_fields(pool)
            .into_iter()
            .partition(|field| field.options().get_extension(&option).as_bool() == Some(true));
        let secret = Self(secret);
        for field in &secret.0 {
            let name = field.full_name();
            if !is_string_map(field) {
                return Err(format!("{name}: csi_secret is understood on map<string, string> only").into());
            }
            if field.parent_message().parent_message().is_some() {
                return Err(format!("{name}: csi_secret is understood in top-level messages only").into());
            }
        }
        for field in plain {
            let name = field.full_name();
            if let Kind::Message(inner) = field.kind()
                && secret.of(&inner).next().is_some()
            {
                return Err(format!("{name}: a message with csi_secret cannot be a field's type").into());
            }
        }
        Ok(secret)
    }

    fn of(&self, message: &MessageDescriptor) -> impl Iterator<Item = &FieldDescriptor> {
        self.0
            .iter()
            .filter(move |field| field.parent_message() == message)
    }

    fn render_package(&self, pool: &DescriptorPool, package: &str) -> Result<String, Box<dyn Error>> {
        let mut code = String::new();
        for file in pool.files().filter(|file| file.package_name() == package) {
            for message in file.messages() {
                self.render_secrets(&mut code, &message)?;
                if self.of(&message).next().is_some() {
                    self.render_debug(&mut code, &message)?;
                }
            }
        }
        Ok(code)
    }

    fn render_secrets(&self, code: &mut String, message: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
        let mut names = String::new();
        let (mut maps, mut maps_mut) = (String::new(), String::new());
        for field in self.of(message) {
            write!(names, "\"{}\",", field.name())?;
            write!(maps, "&self.{},", field.name())?;
            write!(maps_mut, "(\"{0}\", &mut self.{0}),", field.name())?;
        }
        write!(
            code,
            "impl crate::secret::Secrets for {name} {{
                const MESSAGE: &'static str = \"{full_name}\";
                const SECRET_FIELDS: &'static [&'static str] = &[{names}];
                fn secrets(&self) -> impl Iterator<Item = &crate::secret::SecretMap> {{
                    [{maps}].into_iter()
                }}
                fn secrets_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut crate::secret::SecretMap)> {{
                    [{maps_mut}].into_iter()
                }}
            }}\n",
            name = message.name(),
            full_name = message.full_name(),
        )?;
        Ok(())
    }

    /// What the derive would print, with secret maps behind `Redacted`. Messages with secrets have neither a
    /// field that prost renames nor a oneof (such code would not compile), nor an enum (it would print as a
    /// number).
    fn render_debug(&self, code: &mut String, message: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
        let mut fields = String::new();
        for field in message.fields() {
            let name = field.name();
            if self.0.contains(&field) {
                write!(
                    fields,
                    ".field(\"{name}\", &crate::secret::Redacted(&self.{name}))"
                )?;
            } else {
                write!(fields, ".field(\"{name}\", &self.{name})")?;
            }
        }
        write!(
            code,
            "impl ::core::fmt::Debug for {name} {{
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
                    f.debug_struct(\"{name}\"){fields}.finish()
                }}
            }}\n",
            name = message.name(),
        )?;
        Ok(())
    }
}

fn all_fields(pool: &DescriptorPool) -> Vec<FieldDescriptor> {
    pool.all_messages()
        .flat_map(|message| message.fields().collect::<Vec<_>>())
        .collect()
}

fn is_string_map(field: &FieldDescriptor) -> bool {
    let Kind::Message(entry) = field.kind() else {
        return false;
    };
    field.is_map()
        && entry.map_entry_key_field().kind() == Kind::String
        && entry.map_entry_value_field().kind() == Kind::String
}
