//! Stories: text files of prose and commands, which the playground plays and checks.
//!
//! A line that begins with white space is a command, a line that begins with `# ` says what the story is about, and all other
//! lines are paragraphs of prose, which the narration shows as headings. `docs/stories.md` describes the commands.

mod command;
mod state;
#[cfg(test)]
mod tests;
mod words;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};

use self::command::Command;
use self::state::{PodVolumes, StoryState};
use self::words::{SyntaxError, Words};
use super::LATENCY;
use crate::narrate::Narrator;
use csi_e2e::invariant;
use csi_e2e::scenario::{ScenarioConfig, TestEnv};

/// The stories of the playground, and its tour.
const FILES: &[(&str, &str)] = &[
    (
        "multi-attach-after-node-loss",
        include_str!("stories/multi-attach-after-node-loss.story"),
    ),
    ("stuck-detach", include_str!("stories/stuck-detach.story")),
    (
        "driver-restart-in-burst",
        include_str!("stories/driver-restart-in-burst.story"),
    ),
    ("leader-hand-over", include_str!("stories/leader-hand-over.story")),
    ("attach-limit", include_str!("stories/attach-limit.story")),
    (
        "detach-without-effect",
        include_str!("stories/detach-without-effect.story"),
    ),
    (
        "detached-behind-kubernetes",
        include_str!("stories/detached-behind-kubernetes.story"),
    ),
    (
        "driver-cache-cold",
        include_str!("stories/driver-cache-cold.story"),
    ),
];
const TOUR: (&str, &str) = ("tour", include_str!("stories/tour.story"));

/// A story. Every command waits for its effect or condition, and fails the story otherwise.
#[derive(Debug)]
pub struct Story {
    /// Name, the argument of `--story`.
    pub name: String,
    /// Summary in one sentence.
    pub about: String,
    /// Setup.
    pub config: ScenarioConfig,
    /// Whether it runs replicas of the attacher.
    pub(crate) has_replicas: bool,
    steps: Vec<Step>,
}

/// A paragraph of prose or a command.
#[derive(Debug)]
enum Step {
    Prose(String),
    Command {
        line: usize,
        text: String,
        is_action: bool,
        command: Command,
    },
}

/// What the commands of a story that are read so far say about its setup.
#[derive(Debug)]
struct Setup {
    config: ScenarioConfig,
    has_replicas: bool,
    /// Whether a paragraph or another command than `set` was read.
    has_begun: bool,
}

/// The playground's default story.
///
/// # Panics
/// It cannot be read; a test reads it.
pub fn tour() -> Arc<Story> {
    let (name, text) = TOUR;
    Arc::new(Story::parse(name, text).expect("a test has read the tour"))
}

/// The story of this name, or in the file of this name.
///
/// # Errors
/// There is neither; or the file is not a story, and the error has line and column.
pub fn open(name: &str) -> Result<Arc<Story>, String> {
    let of_name = FILES.iter().find(|(known, _)| *known == name);
    let is_path = name.contains(['/', '.']);
    let read = match of_name {
        Some((_, text)) => Story::parse(name, text).map_err(|error| format!("{name}:{error}")),
        None if is_path => read_file(Path::new(name)),
        None => {
            return Err(format!(
                "no story has this name, and it is no path of a file; {}",
                list()
            ));
        }
    };
    read.map(Arc::new)
}

/// Name and description of all stories.
pub fn list() -> String {
    let mut list = "the stories are:".to_owned();
    for (name, text) in FILES {
        let about = text.lines().next().unwrap_or_default().trim_start_matches("# ");
        // Writing to a String cannot fail.
        write!(list, "\n\n  {name}\n      {about}").ok();
    }
    list
}

/// The names of all stories.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

fn read_file(path: &Path) -> Result<Story, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let stem = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    // It becomes the name of a namespace.
    let letters = stem.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
        _ => '-',
    });
    let name: String = letters.take(MAX_NAME).collect();
    let name = match name.trim_matches('-') {
        "" => "story",
        name => name,
    };
    Story::parse(name, &text).map_err(|error| format!("{}:{error}", path.display()))
}

/// Longest name of a story; names of objects begin with it.
const MAX_NAME: usize = 40;

// === impl Story ===

impl Story {
    fn parse(name: &str, text: &str) -> Result<Self, SyntaxError> {
        let mut setup = Setup {
            config: ScenarioConfig {
                latency: LATENCY,
                ..ScenarioConfig::DEFAULT
            },
            has_replicas: false,
            has_begun: false,
        };
        let mut about = String::new();
        let mut steps = Vec::new();
        let mut paragraph = String::new();
        for (number, line) in (1..).zip(text.lines()) {
            let is_command = line.starts_with([' ', '\t']) && !line.trim().is_empty();
            if (is_command || line.trim().is_empty()) && !paragraph.is_empty() {
                steps.push(Step::Prose(std::mem::take(&mut paragraph)));
            }
            if is_command {
                let (syntax, command) = command::parse(Words::of(number, line)?, &mut setup)?;
                setup.has_begun |= syntax.verb() != "set";
                steps.push(Step::Command {
                    line: number,
                    text: line.trim().to_owned(),
                    is_action: syntax.is_action,
                    command,
                });
            } else if let Some(title) = line.strip_prefix("# ") {
                if !about.is_empty() || setup.has_begun {
                    let text = "only the first line says what the story is about: remove the #".to_owned();
                    let column = 1;
                    return Err(SyntaxError {
                        line: number,
                        column,
                        text,
                    });
                }
                title.trim().clone_into(&mut about);
            } else if !line.trim().is_empty() {
                setup.has_begun = true;
                if !paragraph.is_empty() {
                    paragraph.push(' ');
                }
                paragraph.push_str(line.trim());
            }
        }
        if !paragraph.is_empty() {
            steps.push(Step::Prose(paragraph));
        }
        if about.is_empty() {
            name.clone_into(&mut about);
        }
        Ok(Self {
            name: name.to_owned(),
            about,
            config: setup.config,
            has_replicas: setup.has_replicas,
            steps,
        })
    }

    /// Plays the story, then deletes all objects, and checks the invariants before and after the deletion.
    ///
    /// # Errors
    /// A command failed, a condition did not come true, or an invariant was violated.
    pub async fn play(&self, env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
        narrator.heading(&self.about).await?;
        self.play_steps(env, narrator).await?;
        env.settle().await?;
        invariant::enforce(&invariant::check_running(&env.observations().await?))?;
        narrator
            .heading("The end. Everything is deleted: volumes are unmounted, detached and released.")
            .await?;
        narrator.you("delete all pods, then all claims and volumes");
        env.clear().await?;
        narrator
            .heading(
                "Checked: all steps succeeded. Nothing is attached, published or held by a finalizer any more, \
                 and no secret was written anywhere.",
            )
            .await
    }

    async fn play_steps(&self, env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
        let mut state = StoryState::new(env, narrator);
        let mut volumes = PodVolumes::default();
        let mut paragraphs = 0;
        for step in &self.steps {
            match step {
                Step::Prose(text) => {
                    paragraphs += 1;
                    narrator.pace().turn().await;
                    narrator.heading(&format!("{paragraphs}. {text}")).await?;
                }
                Step::Command {
                    line,
                    text,
                    is_action,
                    command,
                } => {
                    narrator.pace().turn().await;
                    let affected = volumes.affected_by(command);
                    if *is_action {
                        narrator.you_to(affected, text);
                    }
                    let within = self.config.within;
                    let run = tokio::time::timeout(within, command.run(&mut state)).await;
                    let run = run.unwrap_or_else(|_| Err(anyhow!("not done after {within:?}")));
                    run.with_context(|| format!("line {line}: {text}"))?;
                }
            }
        }
        state.end().await
    }
}
