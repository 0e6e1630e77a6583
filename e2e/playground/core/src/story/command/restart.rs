//! `restart`: the controllers.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};
use csi_e2e::control_plane::Component;

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["restart controllers"],
    about: "restarts kube-controller-manager, which rebuilds its desired and actual state of world from the API. Fails with \
            `--cluster kubeconfig`",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct RestartControllers;

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    words.expect("controllers")?;
    Ok(Box::new(RestartControllers))
}

impl Command for RestartControllers {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let cluster = stage.env.ctx().cluster();
            cluster.restart_component(Component::ControllerManager).await
        })
    }
}
