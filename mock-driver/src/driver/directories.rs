use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mode::Mode;
use super::registration;
use super::settings::{OpenError, Settings};
use crate::admin_api;
use crate::array::{self, Image};
use crate::fault::scenario;
use crate::fault::{FaultFile, Faults, Needs, Seed};
use crate::journal::Journal;
use crate::node::{self, device};
use crate::store::volume_files::{Owner, VolumeFiles};
use crate::store::{Database, Initial, Store};

/// Makes paths absolute: links and mounts survive a change of the working directory, and relative ones would break.
pub(super) fn with_absolute_paths(settings: Settings) -> Result<Settings, OpenError> {
    let mut settings = if settings.proxy_to.is_some() {
        without_array(settings)
    } else {
        settings
    };
    let absolute =
        |path: PathBuf| std::path::absolute(&path).map_err(|source| OpenError::Relative { path, source });
    settings.state_dir = settings.state_dir.map(absolute).transpose()?;
    settings.media_dir = settings.media_dir.map(absolute).transpose()?;
    settings.node.device_dir = settings.node.device_dir.map(absolute).transpose()?;
    let directories = [
        ("--state-dir", &settings.state_dir),
        ("--media-dir", &settings.media_dir),
        ("--device-dir", &settings.node.device_dir),
    ];
    for (flag, path) in directories {
        if let Some(path) = path.as_ref().filter(|path| path.to_str().is_none()) {
            return Err(OpenError::NotUtf8 {
                flag,
                path: path.clone(),
            });
        }
    }
    let absolute_paths = |registration: registration::Settings| {
        // Kubelet has another working directory.
        Ok::<_, OpenError>(registration::Settings {
            directory: absolute(registration.directory)?,
            endpoint: absolute(registration.endpoint)?,
        })
    };
    settings.registration = settings.registration.map(absolute_paths).transpose()?;
    Ok(settings)
}

/// The settings of a proxy: array, node, registration and their directories are those of the proxied driver, which may run
/// with the same flags.
fn without_array(settings: Settings) -> Settings {
    Settings {
        mode: Mode::All,
        array_endpoint: admin_api::Endpoint::None,
        registration: None,
        node_id: None,
        node: node::Settings {
            device_dir: None,
            ..settings.node
        },
        state_dir: None,
        media_dir: None,
        ..settings
    }
}

pub(super) fn volume_files_in(settings: &Settings) -> VolumeFiles {
    match (settings.media_dir.clone(), &settings.state_dir) {
        _ if settings.node.devices == device::Choice::Simulated => VolumeFiles::nowhere(),
        (Some(directory), _) => VolumeFiles::kept(directory),
        (None, Some(directory)) => VolumeFiles::kept(directory.join("media")),
        (None, None) => VolumeFiles::private(),
    }
}

pub(super) fn open_journal(settings: &Settings) -> Result<Option<Arc<Journal>>, OpenError> {
    let (file, config) = (settings.journal.as_deref(), settings.journal_config);
    if file.is_none() && !config.any() {
        return Ok(None);
    }
    let journal = Journal::open(file, config, random()?, settings.clock.clone())?;
    Ok(Some(Arc::new(journal)))
}

/// Loads the fault rules of scenarios and of the file, which the caller follows.
pub(super) fn open_faults(settings: &Settings) -> Result<(Faults, Option<FaultFile>), OpenError> {
    let rules = Faults::new(seed_of_run(settings.seed)?).within(match (&settings.proxy_to, settings.mode) {
        (Some(_), _) => vec![Needs::Calls],
        (None, Mode::All) => vec![Needs::Calls, Needs::Services, Needs::Array, Needs::Node],
        (None, Mode::Controller) => vec![Needs::Calls, Needs::Services, Needs::Array],
        (None, Mode::Node) => vec![Needs::Calls, Needs::Services, Needs::Node],
    });
    scenario::play(&settings.scenarios, &settings.stubs, &rules)?;
    let path = settings.faults.as_deref();
    let file = path.map(|path| FaultFile::open(path, &rules)).transpose()?;
    Ok((rules, file))
}

pub(super) fn open_state(directory: Option<&Path>) -> Result<Option<Arc<Database>>, OpenError> {
    let opened = directory.map(Database::open).transpose()?;
    Ok(opened.map(Arc::new))
}

pub(super) fn open_store(
    database: Option<Arc<Database>>,
    settings: &Settings,
    id_seed: u128,
    rules: &Faults,
) -> Result<Store, OpenError> {
    let array = settings.array.clone();
    let initial = Initial {
        volumes: settings.initial_volumes,
        fixture: settings
            .fixture
            .as_deref()
            .map(|path| fixture(path, &array))
            .transpose()?,
    };
    let store = match database {
        Some(database) => Store::open(database, array, id_seed, initial)?,
        None => Store::in_memory(array, id_seed, initial),
    };
    Ok(store.with_stale_lists(rules.frozen.clone()))
}

/// Reads a state of the array in YAML or JSON.
fn fixture(path: &Path, settings: &array::Settings) -> Result<Image, OpenError> {
    let wrong = |reason: String| OpenError::Fixture {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let image: Image = serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    image.check(settings).map_err(|error| wrong(error.to_string()))?;
    Ok(image)
}

/// Marks the media directory with the array's identity.
pub(super) fn claim(
    volume_files: &VolumeFiles,
    store: &Store,
    id_seed: u128,
    state_dir: Option<&Path>,
) -> Result<(), OpenError> {
    if !volume_files.is_kept() {
        return Ok(());
    }
    let marked = store.marked_media()?;
    // An array in memory has no identity; equal volume names mean nothing.
    let identity = store.identity(u128::from_le_bytes(random()?))?;
    let array = identity.unwrap_or_else(|| format!("{id_seed:032x}"));
    let owner = Owner {
        array,
        is_kept: store.database.is_some(),
        marked: marked.clone(),
    };
    let claimed = volume_files.claim(&owner, state_dir)?;
    match claimed {
        Some(directory) if marked.as_ref() != Some(&directory) => Ok(store.set_marked_media(&directory)?),
        Some(_) | None => Ok(()),
    }
}

fn seed_of_run(given: Option<u64>) -> Result<Seed, OpenError> {
    let entropy = random()?;
    let by_chance = u32::from_le_bytes([entropy[0], entropy[1], entropy[2], entropy[3]]);
    Ok(Seed(given.unwrap_or(u64::from(by_chance))))
}

pub(super) fn random() -> Result<[u8; 16], OpenError> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| OpenError::Random(error.into()))?;
    }
    Ok(bytes)
}
