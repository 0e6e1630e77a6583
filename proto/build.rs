//! Compiles the proto files with protox (no protoc needed) and writes, beside what prost and tonic generate,
//! the code that keeps `csi_secret` fields out of logs. Which fields are secret is read from the descriptors.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use protox::{
    Compiler,
    prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor},
};

const PROTO_FILES: [&str; 2] = ["csi/csi.proto", "pluginregistration/api.proto"];

/// Proto package, and the file that its generated `Secrets` and `Debug` code goes to.
const PACKAGES: [(&str, &str); 2] = [
    ("csi.v1", "csi.v1.secret.rs"),
    ("pluginregistration", "pluginregistration.secret.rs"),
];

const SECRET_OPTION: &str = "csi.v1.csi_secret";

fn main() -> Result<(), Box<dyn Error>> {
    for file in PROTO_FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo must set OUT_DIR for build scripts")?);

    // The comments are wanted as rustdoc, but not in the descriptors that end up in programs.
    let documented = compile(true)?;
    let plain = compile(false)?;
    fs::write(out.join("descriptors.binpb"), plain.encode_file_descriptor_set())?;

    let pool = plain.descriptor_pool();
    let secret = SecretFields::find(&pool)?;
    for (package, file) in PACKAGES {
        fs::write(out.join(file), secret.render_package(&pool, package)?)?;
    }
    tonic_prost_build::configure()
        .build_transport(false)
        .skip_debug(
            secret
                .fields
                .iter()
                .map(|f| format!(".{}", f.parent_message().full_name())),
        )
        .compile_fds(documented.file_descriptor_set())?;
    Ok(())
}

fn compile(source_info: bool) -> Result<Compiler, protox::Error> {
    let mut compiler = Compiler::new(["."])?;
    compiler
        .include_imports(true)
        .include_source_info(source_info)
        .open_files(PROTO_FILES)?;
    Ok(compiler)
}

/// Every field with the option `csi_secret`.
struct SecretFields {
    fields: Vec<FieldDescriptor>,
}

impl SecretFields {
    /// # Errors
    /// When a secret has a shape that the generated code would not hide.
    fn find(pool: &DescriptorPool) -> Result<Self, Box<dyn Error>> {
        let option = pool
            .get_extension_by_name(SECRET_OPTION)
            .ok_or("csi.proto must define the option csi_secret")?;
        let fields: Vec<_> = pool
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>())
            .filter(|field| field.options().get_extension(&option).as_bool() == Some(true))
            .collect();
        for field in &fields {
            if !is_string_map(field) {
                return Err(format!(
                    "{}: only a map<string, string> can be csi_secret",
                    field.full_name()
                )
                .into());
            }
            if field.parent_message().parent_message().is_some() {
                return Err(
                    format!("{}: only a top-level message can have secrets", field.full_name()).into(),
                );
            }
        }
        let secrets = Self { fields };
        for field in pool.all_messages().flat_map(|m| m.fields().collect::<Vec<_>>()) {
            if let Kind::Message(inner) = field.kind()
                && secrets.of(&inner).next().is_some()
            {
                // `strip_secrets` does not descend into fields.
                return Err(format!(
                    "{}: a message with csi_secret fields cannot be nested",
                    field.full_name()
                )
                .into());
            }
        }
        Ok(secrets)
    }

    fn of(&self, message: &MessageDescriptor) -> impl Iterator<Item = &FieldDescriptor> {
        self.fields
            .iter()
            .filter(move |field| field.parent_message() == message)
    }

    fn render_package(&self, pool: &DescriptorPool, package: &str) -> Result<String, Box<dyn Error>> {
        let mut code = String::new();
        for message in pool
            .all_messages()
            .filter(|m| m.package_name() == package && m.parent_message().is_none())
        {
            self.render_secrets(&mut code, &message)?;
            if self.of(&message).next().is_some() {
                self.render_debug(&mut code, &message)?;
            }
        }
        Ok(code)
    }

    fn render_secrets(&self, code: &mut String, message: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
        let maps = self.of(message).fold(String::new(), |maps, f| {
            format!("{maps}(\"{0}\", &mut self.{0}),", f.name())
        });
        let names = self
            .of(message)
            .fold(String::new(), |names, f| format!("{names}\"{}\",", f.name()));
        write!(
            code,
            "impl crate::secret::Secrets for {name} {{
                const MESSAGE: &'static str = \"{full}\";
                const SECRET_FIELDS: &'static [&'static str] = &[{names}];
                fn secrets_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut crate::secret::SecretMap)> {{
                    [{maps}].into_iter()
                }}
            }}\n",
            name = message.name(),
            full = message.full_name(),
        )?;
        Ok(())
    }

    /// What `#[derive(Debug)]` would print, with secret maps behind `Redacted`. A field that prost renames, or
    /// one of an enum or oneof type, is not met in a message with secrets; it would not compile.
    fn render_debug(&self, code: &mut String, message: &MessageDescriptor) -> Result<(), Box<dyn Error>> {
        writeln!(code, "impl ::core::fmt::Debug for {} {{", message.name())?;
        writeln!(
            code,
            "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{"
        )?;
        write!(code, "f.debug_struct(\"{}\")", message.name())?;
        for field in message.fields() {
            let name = field.name();
            if self.fields.contains(&field) {
                write!(code, ".field(\"{name}\", &crate::secret::Redacted(&self.{name}))")?;
            } else {
                write!(code, ".field(\"{name}\", &self.{name})")?;
            }
        }
        writeln!(code, ".finish()\n}}\n}}")?;
        Ok(())
    }
}

fn is_string_map(field: &FieldDescriptor) -> bool {
    field.is_map()
        && matches!(field.kind(), Kind::Message(entry)
            if entry.map_entry_key_field().kind() == Kind::String && entry.map_entry_value_field().kind() == Kind::String)
}
