//! `array`: what happens at the array behind Kubernetes' back.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["array unpublishes VOLUME from NODE"],
    about: "the array detaches a volume although neither Kubernetes nor the attacher asked for it",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct Unpublish {
    volume: String,
    node: usize,
}

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    words.expect("unpublishes")?;
    let volume = words.name("the name of a volume")?;
    words.expect("from")?;
    let node = words.node(setup)?;
    Ok(Box::new(Unpublish { volume, node }))
}

impl Command for Unpublish {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let volume = stage.existing_volume(&self.volume)?;
            stage.env.unpublish_out_of_band(&volume, self.node).await
        })
    }
}
