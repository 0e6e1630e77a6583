//! `pause`: lets time pass.

use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["pause DURATION"],
    about: "lets time pass; prefer `wait`, which ends as soon as its condition holds",
    is_action: false,
    parse,
};

#[derive(Debug)]
struct Pause(Duration);

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    Ok(Box::new(Pause(words.duration()?)))
}

impl Command for Pause {
    fn run<'a>(&'a self, _: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            tokio::time::sleep(self.0).await;
            Ok(())
        })
    }
}
