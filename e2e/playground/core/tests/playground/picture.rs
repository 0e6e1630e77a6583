//! The picture of the path in a real browser: its place on the page, and what it draws of snapshots that no playground shows
//! for long.

use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::page::on_page;
use super::session::Browser;

/// A volume that is detached from the lost node a, and the pod on node b that waits for it.
fn mk_snapshot() -> Value {
    json!({
        "nodes": [{"name": "a", "ready": false, "outOfService": false}, {"name": "b", "ready": true, "outOfService": false}],
        "pods": [{"name": "db-2", "node": "b", "phase": "Pending", "volumes": ["data"],
            "reason": "Multi-Attach error for volume \"data\" Volume is already used by pod(s) db-1"}],
        "attachments": [{"name": "csi-1", "volume": "data", "node": "a", "attached": true, "deleting": true, "error": ""}],
        "volumes": ["data"], "hasReplicas": false,
        "lanes": [{"lane": "detach", "limit": 10, "running": 1, "ready": 0, "waiting": 0}],
        "array": [{"node": "a", "volumes": ["data"]}],
    })
}

/// The lane of detaches with these numbers of work items.
fn mk_lane(running: u8, ready: u8, waiting: u8) -> Value {
    let lane = json!({"lane": "detach", "limit": 10, "running": running, "ready": ready, "waiting": waiting});
    json!({"lanes": [lane]})
}

/// The volume stays attached to the lost node, and a pod on node b has these volumes.
fn mk_attached(volumes: Value) -> Value {
    json!({
        "attachments": [{"name": "csi-1", "volume": "data", "node": "a", "attached": true, "deleting": false, "error": ""}],
        "pods": [{"name": "db-2", "node": "b", "phase": "Pending", "volumes": volumes, "reason": ""}],
        "lanes": [],
    })
}

pub(crate) fn names_what_each_waits_for() -> Result<(), Failed> {
    on_page(async |_, browser| {
        let with = |changes: Value| {
            let mut snapshot = mk_snapshot();
            let fields = snapshot.as_object_mut().into_iter();
            fields.for_each(|fields| fields.extend(changes.as_object().cloned().unwrap_or_default()));
            snapshot
        };
        for (changes, shown, hidden, edges) in [
            (
                json!({}),
                &["detaching", "pod(s) db-1"][..],
                "does not respond",
                "busy",
            ),
            (
                json!({"lanes": null}),
                &["detach waits for the attacher", "does not respond"],
                "detaching",
                "bad",
            ),
            (
                json!({"array": null}),
                &["detach waits for the driver"],
                "detaching",
                "bad",
            ),
            (
                json!({"lanes": null, "hasReplicas": true}),
                &["detaching", "several attachers, lanes not shown"],
                "does not respond",
                "busy",
            ),
            (
                mk_lane(0, 1, 0),
                &["detach queued at the attacher"],
                "detaching",
                "bad",
            ),
            (
                mk_lane(0, 0, 2),
                &["detach in backoff at the attacher"],
                "detaching",
                "bad",
            ),
            (
                mk_lane(0, 1, 2),
                &["detach queued or in backoff at the attacher"],
                "detaching",
                "bad",
            ),
            (mk_lane(1, 1, 2), &["detaching"], "at the attacher", "busy"),
            (
                mk_attached(json!(["data"])),
                &["node a is lost: waits for its kubelet or the out-of-service taint"],
                "detach",
                "bad",
            ),
            (mk_attached(json!(["logs"])), &["attached"], "is lost", "good"),
        ] {
            let (text, drawn) = draw(browser, &with(changes.clone()), 1400).await?;
            for part in shown {
                if !text.contains(part) {
                    return Err(format!("{changes}: no {part:?} in {text}").into());
                }
            }
            if text.contains(hidden) || drawn != [edges; 3] {
                return Err(format!("{changes}: {drawn:?} {text}").into());
            }
        }
        Ok(())
    })
}

pub(crate) fn comes_first_and_connects_boxes() -> Result<(), Failed> {
    on_page(async |_, browser| {
        for width in [1400, 390] {
            let (_, edges) = draw(browser, &mk_snapshot(), width).await?;
            if edges.len() != 3 {
                return Err(format!("{edges:?} at {width}").into());
            }
            // Everything is drawn inside of the picture.
            browser
                .until(
                    "(() => { const svg = document.querySelector('#drawn svg'); const [x, y, w, h] = svg.getAttribute('viewBox').split(' ').map(Number);
                    return [...svg.querySelectorAll('.edge, rect')].every((e) => { const b = e.getBBox();
                      return b.x >= x && b.y >= y && b.x + b.width <= x + w && b.y + b.height <= y + h; }); })()",
                )
                .await;
            let order = "['picture', 'controls', 'panels'].map((id) => document.getElementById(id).getBoundingClientRect().top)";
            browser
                .until(&format!(
                    "{order}.every((top, index, all) => index === 0 || all[index - 1] < top)"
                ))
                .await;
        }
        let colours = "['good', 'busy', 'bad'].map((tone) => { const text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
            text.setAttribute('class', tone); document.querySelector('#path svg').append(text); const { fill } = getComputedStyle(text); text.remove(); return fill; })";
        browser.until(&format!("new Set([...{colours}, getComputedStyle(document.querySelector('#path text.title')).fill]).size === 4")).await;
        Ok(())
    })
}

/// The texts of the drawn snapshot, and the tones of its edges. `#drawn` is the picture, out of the page's layout.
async fn draw(browser: &Browser, snapshot: &Value, width: u32) -> Result<(String, Vec<String>), Failed> {
    let size = json!({"width": width, "height": 1300, "deviceScaleFactor": 1, "mobile": false});
    let tools = browser.driver.cdp();
    tools.send_raw("Emulation.setDeviceMetricsOverride", size).await?;
    browser
        .run("import('/playground/path.js').then((module) => { window.drawPath = module.drawPath; })")
        .await;
    browser.until("window.drawPath").await;
    browser.until(&format!("innerWidth === {width}")).await;
    browser
        .run(&format!(
            "document.getElementById('drawn')?.remove(); const box = document.createElement('div'); box.id = 'drawn'; box.style.position = 'fixed';
            box.style.width = '300px'; document.body.append(box); window.drawPath(box, {snapshot}, String);"
        ))
        .await;
    let texts = browser
        .run("return [...document.querySelectorAll('#drawn text')].map((text) => text.textContent).join(' ')")
        .await;
    let tones = browser
        .run("return [...document.querySelectorAll('#drawn .edge')].map((edge) => edge.getAttribute('class').replace('edge ', ''))")
        .await;
    let text = texts.as_str().unwrap_or_default().to_owned();
    Ok((text, serde_json::from_value(tones)?))
}
