//! `delete`: pods.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["delete pod NAME [by force]", "delete pods NAME"],
    about: "deletes a pod, or the pods of one `pods` command; by force: without waiting for its kubelet",
    is_action: true,
    parse,
};

#[derive(Debug)]
enum DeletePods {
    One(String),
    ByForce(String),
    Group(String),
}

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let what = words.choice("what to delete", &["pod", "pods"])?;
    let name = words.name("the name of a pod")?;
    Ok(Box::new(match what {
        "pods" => DeletePods::Group(name),
        _ if words.accept("by force") => DeletePods::ByForce(name),
        _ => DeletePods::One(name),
    }))
}

impl Command for DeletePods {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self {
                Self::One(name) => stage.env.delete_pod(name).await,
                Self::ByForce(name) => stage.env.remove_pod(name).await,
                Self::Group(name) => {
                    for pod in stage.group(name)? {
                        stage.env.delete_pod(&pod).await?;
                    }
                    stage.groups.remove(name);
                    Ok(())
                }
            }
        })
    }
}
