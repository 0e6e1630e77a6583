//! Writes man pages and shell completions of the project's programs, so that the programs need not contain them:
//! `cargo run -p csi-e2e --example manuals -- DIR` writes `DIR/man1/*.1` and `DIR/completions/SHELL/*`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

fn main() -> Result<()> {
    let dir = std::env::args_os()
        .nth(1)
        .context("usage: cargo run -p csi-e2e --example manuals -- DIR")?;
    write_all(&PathBuf::from(dir))
}

fn programs() -> [Command; 3] {
    let ctl = csi_mock_driver::ctl::Ctl::command().name("ctl");
    [
        csi_attacher::args::Args::command(),
        csi_mock_driver::run::args::Args::command().subcommand(ctl),
        kubectl_csi_attach::command(),
    ]
}

fn write_all(dir: &Path) -> Result<()> {
    let man = dir.join("man1");
    fs::create_dir_all(&man).with_context(|| format!("create {}", man.display()))?;
    for program in programs() {
        for shell in SHELLS {
            let scripts = dir.join("completions").join(shell.to_string());
            fs::create_dir_all(&scripts)?;
            let name = program.get_name().to_owned();
            clap_complete::generate_to(shell, &mut program.clone(), name, &scripts)?;
        }
        // A page for each subcommand, too.
        clap_mangen::generate_to(program, &man)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use verdict::Requirement::Program;

    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn programs_and_subcommands_have_man_pages_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path()).unwrap();
        for (page, content) in [
            ("csi-attacher.1", "worker\\-threads"),
            ("csi-mock-driver.1", "media\\-dir"),
            ("csi-mock-driver-ctl.1", "admin\\-endpoint"),
            ("csi-mock-driver-ctl-attachments.1", "csi-mock-driver"),
            ("kubectl-csi_attach-explain.1", "stuck\\-after"),
        ] {
            let page = dir.path().join("man1").join(page);
            assert!(read(&page).contains(content), "{}", page.display());
        }
        let bash = dir.path().join("completions/bash");
        for (script, content) in [
            ("csi-attacher.bash", "--worker-threads"),
            ("csi-mock-driver.bash", "attachments"),
            ("kubectl-csi_attach.bash", "--stuck-after"),
        ] {
            let script = bash.join(script);
            assert!(read(&script).contains(content), "{}", script.display());
            if verdict::is_met(Program("bash")) {
                let parsed = verdict::command("bash").arg("-n").arg(&script).status();
                assert!(parsed.unwrap().success(), "{}", script.display());
            }
        }
        assert!(dir.path().join("completions/zsh/_csi-attacher").exists());
        assert!(dir.path().join("completions/fish/csi-mock-driver.fish").exists());
    }
    #[test]
    fn commands_of_the_document_show_the_files() {
        verdict::require!(Program("bash"));
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path()).unwrap();
        let commands =
            csi_e2e::document::block("docs/install.md", "cargo run -p csi-e2e --example manuals").unwrap();
        let commands = commands.replace("target/manuals", &dir.path().display().to_string());
        // `cargo run` is this program. Not every machine has `man`.
        let script = format!(
            "cargo() {{ :; }}\n\
             command -v man >/dev/null || man() {{ cat \"$2/man1/$3.1\"; }}\n\
             {commands}complete -p csi-mock-driver"
        );
        let output = verdict::command("bash")
            .args(["-euc", &script])
            .env("MANPAGER", "cat")
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            stdout.contains("csi-attacher") && stdout.contains("csi-mock-driver"),
            "{stdout}"
        );
    }
}
