//! `volume`: claims with volumes.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};
use csi_e2e::fixture::Access;

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["volume NAME, ... [shared]"],
    about: "creates claims and their volumes, ReadWriteOnce, or ReadWriteMany if shared",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct CreateVolumes {
    names: Vec<String>,
    access: Access,
}

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let names = words.list(|words| words.name("the name of a volume"))?;
    let access = match words.accept("shared") {
        true => Access::ManyNodes,
        false => Access::OneNode,
    };
    Ok(Box::new(CreateVolumes { names, access }))
}

impl Command for CreateVolumes {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            for name in &self.names {
                stage.env.volume(name, self.access).await?;
            }
            Ok(())
        })
    }
}
