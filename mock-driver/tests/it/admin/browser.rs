//! The dashboard in a real browser: Debian's chromium and chromium-driver, headless.

mod session;

use csi_mock_driver::admin_api::resource::{
    Attach, GroupSnapshotNew, HealthIssue, NodeChange, NodeNew, StorageHealthIssue, VolumeChange, VolumeNew,
};
use csi_mock_driver::array::{Severity, StorageSeverity};
use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::server::{Server, mk_publish};
use session::{Browser, CONTRAST};

const PANELS: [&str; 7] = [
    "nodes",
    "volumes",
    "snapshots",
    "storage",
    "calls",
    "faults",
    "capabilities",
];

fn url(server: &Server, panel: &str) -> String {
    format!("http://{}/#{panel}", server.admin_address())
}

#[tokio::test]
async fn browser_shows_attachments_and_injects_faults() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 5).await;
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-1", "node-2"))
        .await
        .unwrap();
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    let row = "document.querySelector('#panel-nodes tr[data-key=\"node-2\"]')";
    browser
        .until(&format!("{row}?.innerText.includes('vol-1')"))
        .await;

    // Detach out of band: dialog, detach, announcement, update of the table.
    browser.click("#panel-nodes button.chip").await;
    browser.until("document.querySelector('dialog').open").await;
    assert_eq!(
        client.node("node-2").await.unwrap().attached,
        1,
        "not before the user confirms"
    );
    browser.click("#ask-yes").await;
    browser
        .until("document.querySelector('#done').textContent.includes('Detached vol-1 from node-2')")
        .await;
    browser
        .until(&format!("!{row}.innerText.includes('vol-1')"))
        .await;
    assert_eq!(client.node("node-2").await.unwrap().attached, 0);

    // Changes by other clients appear without a reload.
    csi.controller_publish_volume(mk_publish("vol-3", "node-2"))
        .await
        .unwrap();
    browser.until(&format!("{row}.innerText.includes('vol-3')")).await;
    let loses = "#panel-nodes tr[data-key='node-2'] td.acts button:last-child";
    browser.click(loses).await;
    browser.click("#ask-yes").await;
    // The button's text before is "Deregister".
    browser
        .until(&format!(
            "[...{row}.querySelectorAll('button')].some((b) => b.textContent === 'Register')"
        ))
        .await;
    assert!(!client.node("node-2").await.unwrap().registered);
    browser.click(loses).await;
    browser
        .until(&format!(
            "{row}.innerText.includes('registered') && !{row}.innerText.includes('deregistered')"
        ))
        .await;
    assert!(client.node("node-2").await.unwrap().registered);
    browser.close().await;
}

#[tokio::test]
async fn browser_switches_faults_and_capabilities_and_shows_journal() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 5).await;
    let mut csi = server.controller().await;
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };

    // A call that a rule blocks is listed as running, and can be released.
    let rule = json!({"id": "hold", "match": {"method": "DeleteVolume"}, "action": {"hang": "release"}});
    client.put_fault(&rule).await.unwrap();
    browser.click("#tab-faults").await;
    let (deleted, ()) = tokio::join!(csi.delete_volume(crate::server::mk_delete("vol-4")), async {
        browser
            .until("document.querySelector('#running').innerText.includes('blocked by hold')")
            .await;
        browser
            .until(
                "document.querySelector('#panel-faults tr[data-key=\"hold\"] [aria-label^=Release]')?.checkVisibility()",
            )
            .await;
        browser
            .click("#panel-faults tr[data-key='hold'] [aria-label^=Release]")
            .await;
        browser
            .until("document.querySelector('#running').children.length === 0")
            .await;
    });
    deleted.unwrap();
    // The clicked button goes away; the focus stays in the panel.
    browser
        .until("document.activeElement.id === 'panel-faults'")
        .await;
    let release = "document.querySelector('#panel-faults tr[data-key=\"hold\"] [aria-label^=Release]')";
    browser.until(&format!("!{release}.checkVisibility()")).await;
    browser
        .click("#panel-faults tr[data-key='hold'] [role=switch]")
        .await;
    browser.until("document.querySelector('#panel-faults tr[data-key=\"hold\"] [role=switch]').ariaChecked === 'false'").await;
    assert!(!client.faults().await.unwrap().rules[0].enabled);
    browser.click("[aria-label='Scenario detach-slow']").await;
    browser
        .until("document.querySelector('[aria-label=\"Scenario detach-slow\"]').ariaChecked === 'true'")
        .await;

    browser.click("#tab-capabilities").await;
    browser
        .until("document.querySelector('[aria-label=LIST_VOLUMES]')")
        .await;
    browser.click("[aria-label=LIST_VOLUMES]").await;
    browser
        .until("document.querySelector('[aria-label=LIST_VOLUMES]').ariaChecked === 'false'")
        .await;
    let known = client.capabilities().await.unwrap();
    assert!(
        known
            .iter()
            .any(|known| known.name == "LIST_VOLUMES" && !known.enabled)
    );

    browser.click("#tab-calls").await;
    browser
        .until("document.querySelectorAll('#panel-calls tbody tr').length === 1")
        .await;
    browser.run("const code = document.querySelector('#panel-calls select'); code.value = '!OK'; code.dispatchEvent(new Event('change'))").await;
    browser
        .until("document.querySelectorAll('#panel-calls tbody tr').length === 0")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn dashboard_works_by_keyboard_and_escapes_names() {
    const EVIL: &str = "<img src=x onerror=alert(1)>";
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let new = VolumeNew {
        name: EVIL.to_owned(),
        ..VolumeNew::default()
    };
    client.create_volume(&new).await.unwrap();
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    browser
        .until("document.querySelector('#panel-nodes tbody tr')")
        .await;

    // The first tab stop is the skip link; the second one is the selected tab, from which arrow keys move on.
    browser.press(Key::Tab).await;
    assert_eq!(
        browser.run("return document.activeElement.className").await,
        "skip"
    );
    browser.press(Key::Tab).await;
    assert_eq!(browser.run("return document.activeElement.id").await, "tab-nodes");
    let outline = browser
        .run("return getComputedStyle(document.activeElement).outlineStyle")
        .await;
    assert_eq!(outline, "solid", "the focus is visible");
    browser.press(Key::Right).await;
    assert_eq!(
        browser.run("return document.activeElement.id").await,
        "tab-volumes"
    );
    assert_eq!(
        browser
            .run("return document.querySelector('#panel-nodes').hidden")
            .await,
        true
    );

    browser
        .until(&format!(
            "document.querySelector('#panel-volumes').innerText.includes({EVIL:?})"
        ))
        .await;
    assert_eq!(
        browser
            .run("return document.querySelectorAll('img').length")
            .await,
        0
    );

    // Attach by keyboard: find the button by its name, type the node, confirm with Enter.
    browser
        .run("document.querySelector('[aria-label=\"Attach vol-0\"]').focus()")
        .await;
    browser.press(Key::Enter).await;
    browser.until("document.activeElement.id === 'ask-input'").await;
    browser.press("node-1").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.querySelector('#panel-volumes').innerText.includes('node-1')")
        .await;
    assert_eq!(
        client.volume("vol-0").await.unwrap().attachments[0].node,
        "node-1"
    );
    assert_eq!(
        browser
            .run("return document.activeElement.getAttribute('aria-label')")
            .await,
        "Attach vol-0",
        "the focus returns to the button"
    );

    // A refusal is announced to screen readers.
    browser.press(Key::Enter).await;
    browser.until("document.activeElement.id === 'ask-input'").await;
    browser.press("nowhere").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.querySelector('[role=alert]').textContent.includes('nowhere')")
        .await;

    // The browser logs the 404 of the refusal, which is expected here.
    let complaints = browser.complaints().await;
    assert!(
        complaints.iter().all(|text| text.contains("404")),
        "{complaints:?}"
    );
    browser.close().await;
}

#[tokio::test]
async fn browser_creates_and_deletes_snapshots() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 3).await;
    let Some(browser) = Browser::open(&url(&server, "snapshots")).await else {
        return;
    };
    browser
        .until("document.querySelector('#panel-snapshots').innerText.includes('0 snapshots')")
        .await;
    let enter = async |text: &str| {
        browser
            .until("document.activeElement.id === 'ask-input' && document.activeElement.value === ''")
            .await;
        browser.press(text).await;
        browser.press(Key::Enter).await;
    };
    let focus = |title: &str| {
        format!(
            "[...document.querySelectorAll('#panel-snapshots button')].find((b) => b.textContent.startsWith('{title}')).focus()"
        )
    };
    browser.run(&focus("Take a snapshot")).await;
    browser.press(Key::Enter).await;
    enter("vol-1").await;
    enter("by-hand").await;
    browser
        .until("document.querySelector('#panel-snapshots tbody').innerText.includes('by-hand')")
        .await;
    let taken = client
        .snapshots(&Default::default())
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!(taken.source, "vol-1");

    browser.run(&focus("Take a group")).await;
    browser.press(Key::Enter).await;
    enter("vol-0, vol-2").await;
    enter("together").await;
    browser
        .until("document.querySelectorAll('#panel-snapshots tbody')[1].innerText.includes('of vol-2')")
        .await;
    browser
        .until("document.querySelectorAll('#panel-snapshots tbody')[0].children.length === 3")
        .await;
    let fixed =
        "document.querySelectorAll('#panel-snapshots tbody')[0].querySelectorAll('button:disabled').length";
    assert_eq!(
        browser.run(&format!("return {fixed}")).await,
        2,
        "members are deleted with their group"
    );
    browser.click("[aria-label^='Delete group']").await;
    browser.click("#ask-yes").await;
    browser
        .until("document.querySelectorAll('#panel-snapshots tbody')[0].children.length === 1")
        .await;
    browser.click("[aria-label^='Delete snapshot']").await;
    browser.click("#ask-yes").await;
    browser
        .until("document.querySelectorAll('#panel-snapshots tbody')[0].children.length === 0")
        .await;
    assert_eq!(client.snapshots(&Default::default()).await.unwrap().matched, 0);
    browser.close().await;
}

#[tokio::test]
async fn dashboard_resizes_pools_and_sets_storage_health() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 3).await;
    let Some(browser) = Browser::open(&url(&server, "storage")).await else {
        return;
    };
    let panel = "document.querySelector('#panel-storage').innerText";
    browser
        .until(&format!("{panel}.includes('No storage health issues')"))
        .await;
    // The capacity of a pool by default.
    browser.until(&format!("{panel}.includes('1 EiB')")).await;
    browser.click("[aria-label='Resize pool pool-0']").await;
    browser.until("document.activeElement.id === 'ask-input'").await;
    browser.run("document.activeElement.value = ''").await;
    browser.press("1099511627776").await;
    browser.press(Key::Enter).await;
    browser.until(&format!("{panel}.includes('1 TiB')")).await;
    assert_eq!(client.pool("pool-0").await.unwrap().capacity_bytes, 1 << 40);

    browser.run("[...document.querySelectorAll('#panel-storage button')].find((b) => b.textContent.startsWith('Set storage health')).click()").await;
    browser.until("document.activeElement.id === 'ask-input'").await;
    browser.run("document.activeElement.value = ''").await;
    browser.press("node-1").await;
    browser.press(Key::Enter).await;
    browser.until(&format!("{panel}.includes('SetByHand')")).await;
    assert_eq!(client.node("node-1").await.unwrap().health.len(), 1);
    browser.click("#tab-nodes").await;
    browser
        .until("document.querySelector('#panel-nodes tr[data-key=\"node-1\"]')?.innerText.includes('storage issue')")
        .await;
    browser.click("#tab-storage").await;
    browser
        .click("[aria-label='Clear storage health of node-1']")
        .await;
    browser
        .until(&format!("{panel}.includes('No storage health issues')"))
        .await;

    let switch =
        "[...document.querySelectorAll('#panel-storage button')].find((b) => b.textContent.includes('rack'))";
    browser.run(&format!("{switch}.click()")).await;
    browser
        .until(&format!("{switch}.textContent === 'Track changes again'"))
        .await;
    assert!(client.backend_faults().await.unwrap()[0].enabled);
    browser.run(&format!("{switch}.click()")).await;
    browser
        .until(&format!("{switch}.textContent === 'Stop tracking changes'"))
        .await;
    assert!(!client.backend_faults().await.unwrap()[0].enabled);
    browser.close().await;
}

#[tokio::test]
async fn browser_refuses_non_numeric_limits() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 1).await;
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    let row = "document.querySelector('#panel-nodes tr[data-key=\"node-1\"]')";
    browser
        .until(&format!("{row}?.innerText.includes('registered')"))
        .await;
    let enter_limit = async |words: &str| {
        browser.click("[aria-label='Change the limit of node-1']").await;
        browser.until("document.activeElement.id === 'ask-input'").await;
        browser.run("document.activeElement.select()").await;
        browser.press(words).await;
        browser.press(Key::Enter).await;
    };
    for words in ["many", "-1", "1.5", "  "] {
        enter_limit(words).await;
        // The dialog stays open with the input until it is a number.
        let refused =
            "document.querySelector('dialog').open && !document.querySelector('#ask-input').checkValidity()";
        browser.until(refused).await;
        assert_eq!(
            browser
                .run("return document.querySelector('#done').textContent")
                .await,
            "",
            "{words}"
        );
        browser.press(Key::Escape).await;
        browser.until("!document.querySelector('dialog').open").await;
    }
    assert_eq!(client.node("node-1").await.unwrap().limit, None);
    enter_limit("3").await;
    browser.until(&format!("{row}.innerText.includes('0 / 3')")).await;
    assert_eq!(client.node("node-1").await.unwrap().limit, Some(3));
    browser
        .until("document.querySelector('#done').textContent === 'Limit of node-1: 3'")
        .await;
    enter_limit("0").await;
    browser
        .until("document.querySelector('#done').textContent === 'Limit of node-1: unlimited'")
        .await;
    assert_eq!(client.node("node-1").await.unwrap().limit, None);

    // A name of blanks is invalid.
    browser.run("[...document.querySelectorAll('#panel-nodes button')].find((b) => b.textContent.startsWith('Register')).click()").await;
    browser.until("document.activeElement.id === 'ask-input'").await;
    browser.press("  ").await;
    browser.press(Key::Enter).await;
    browser
        .until(
            "document.querySelector('dialog').open && !document.querySelector('#ask-input').checkValidity()",
        )
        .await;
    browser.press("node-9").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.querySelector('#done').textContent === 'Registered node-9'")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn paused_calls_panel_does_not_scroll_to_new_calls() {
    let (server, _client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 200).await;
    let mut csi = server.controller().await;
    for number in 0..60 {
        let publish = mk_publish(&format!("vol-{number}"), "node-0");
        csi.controller_publish_volume(publish).await.unwrap();
    }
    let Some(browser) = Browser::open(&url(&server, "calls")).await else {
        return;
    };
    let rows = "document.querySelectorAll('#panel-calls tbody tr')";
    let panel = "document.querySelector('#panel-calls').innerText";
    browser
        .until(&format!("{panel}.includes('1–50 of 60 calls')"))
        .await;
    browser.click("#panel-calls input[type=checkbox]").await;
    for number in 60..120 {
        let publish = mk_publish(&format!("vol-{number}"), "node-0");
        csi.controller_publish_volume(publish).await.unwrap();
    }
    // The page has received the later calls, and still shows the earlier ones.
    browser
        .until("document.querySelector('#counts').innerText.includes('120')")
        .await;
    assert_eq!(
        browser
            .run(&format!("return {rows}[0].innerText.includes('vol-59')"))
            .await,
        true
    );
    browser
        .run(&format!("{rows}[0].querySelector('button').focus()"))
        .await;
    browser.press(Key::Enter).await;
    browser
        .until(&format!("{rows}[1].textContent.includes('Request')"))
        .await;
    assert_eq!(
        browser
            .run(&format!("return {rows}[0].innerText.includes('vol-59')"))
            .await,
        true,
        "the expanded call is still in place"
    );
    assert_eq!(
        browser.run("return document.activeElement.ariaExpanded").await,
        "true"
    );
    browser.press(Key::Enter).await;
    browser.until(&format!("{rows}.length === 50")).await;

    // Two presses before the response move one page, and the page shows the number of pages.
    let next = "[...document.querySelectorAll('#panel-calls button')].find((b) => b.textContent === 'Next')";
    browser
        .run(&format!("const next = {next}; next.click(); next.click()"))
        .await;
    browser
        .until(&format!("{panel}.includes('51–60 of 120 calls')"))
        .await;
    browser.click("#panel-calls input[type=checkbox]").await;
    browser.run("[...document.querySelectorAll('#panel-calls button')].find((b) => b.textContent === 'Previous').click()").await;
    browser
        .until(&format!("{rows}[0].innerText.includes('vol-119')"))
        .await;
    browser.close().await;
}

#[tokio::test]
async fn browser_attaches_raw_block_volumes_as_block() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 0).await;
    let new = |name: &str, block, access_mode: Option<&str>| VolumeNew {
        name: name.to_owned(),
        block,
        access_mode: access_mode.map(str::to_owned),
        ..VolumeNew::default()
    };
    let raw = client
        .create_volume(&new("raw", true, Some("MULTI_NODE_MULTI_WRITER")))
        .await
        .unwrap();
    let plain = client.create_volume(&new("plain", false, None)).await.unwrap();
    let Some(browser) = Browser::open(&url(&server, "volumes")).await else {
        return;
    };
    browser
        .until("document.querySelectorAll('#panel-volumes tbody tr').length === 2")
        .await;
    // (volume, node, expected access)
    let table = [
        (&raw.id, "node-0", "block MULTI_NODE_MULTI_WRITER"),
        (&raw.id, "node-1", "block MULTI_NODE_MULTI_WRITER"),
        (&plain.id, "node-1", "mount SINGLE_NODE_WRITER"),
    ];
    for (volume, node, held) in table {
        browser.click(&format!("[aria-label='Attach {volume}']")).await;
        browser.until("document.activeElement.id === 'ask-input'").await;
        browser.press(node).await;
        browser.press(Key::Enter).await;
        let announced =
            format!("document.querySelector('#done').textContent === 'Attached {volume} to {node}'");
        browser.until(&announced).await;
        let attachments = client.volume(volume).await.unwrap().attachments;
        let found = attachments.iter().find(|attachment| attachment.node == node);
        assert_eq!(found.unwrap().capability, held);
    }
    browser.close().await;
}

#[tokio::test]
async fn keyboard_focus_stays_in_the_panel() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let Some(browser) = Browser::open(&url(&server, "volumes")).await else {
        return;
    };
    browser
        .until("document.querySelectorAll('#panel-volumes tbody tr').length === 2")
        .await;
    // The skip link leads to the visible panel, not to the first one.
    browser.press(Key::Tab).await;
    assert_eq!(
        browser.run("return document.activeElement.className").await,
        "skip"
    );
    browser.press(Key::Enter).await;
    browser.until("document.activeElement.id === 'panels'").await;
    assert_eq!(
        browser
            .run("return [location.hash, document.querySelector('#panel-volumes').hidden]")
            .await,
        json!(["#volumes", false])
    );

    // After the deletion of a row the focus stays in its table.
    browser
        .run("document.querySelector('[aria-label=\"Delete vol-0\"]').focus()")
        .await;
    browser.press(Key::Enter).await;
    browser.until("document.activeElement.id === 'ask-yes'").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.querySelectorAll('#panel-volumes tbody tr').length === 1")
        .await;
    browser
        .until("document.activeElement.id === 'panel-volumes'")
        .await;
    assert!(client.volume("vol-0").await.is_err());

    // Names of JavaScript object properties are not panels.
    browser.run("location.hash = '#toString'").await;
    browser
        .until("location.hash === '#nodes' && document.querySelector('#panel-nodes tbody tr')")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn every_control_has_a_name_and_every_table_has_headers() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let rule = json!({"id": "idle", "match": {"method": "Probe"}, "action": {"delay": "1ms"}});
    client.put_fault(&rule).await.unwrap();
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    let group = GroupSnapshotNew {
        name: "g".to_owned(),
        sources: vec!["vol-0".to_owned(), "vol-1".to_owned()],
        ..GroupSnapshotNew::default()
    };
    client.create_group_snapshot(&group).await.unwrap();
    for panel in PANELS {
        browser.click(&format!("#tab-{panel}")).await;
        let drawn =
            format!("document.querySelector('#panel-{panel} tbody tr, #panel-{panel} [role=switch]')");
        browser.until(&drawn).await;
        let names = browser.run("return [...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.checkVisibility() && !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)").await;
        assert_eq!(names, json!([]), "every control has a name");
        let unscoped = browser.run("return document.querySelectorAll('th:not([scope])').length + document.querySelectorAll('table:not(:has(caption))').length").await;
        assert_eq!(unscoped, 0);
        let unreachable = browser.run("return [...document.querySelectorAll('.strip')].filter((e) => e.checkVisibility() && e.children.length && !e.querySelector('button') && !(e.tabIndex === 0 && e.role && e.ariaLabel)).map((e) => e.outerHTML)").await;
        assert_eq!(unreachable, json!([]), "every strip can be scrolled by keyboard");
    }
    browser.close().await;
}

#[tokio::test]
async fn dashboard_pages_through_large_lists() {
    let (server, client) = Server::start_on_tcp(|_, settings| {
        settings.initial_volumes = 10_000;
        settings.array.nodes = csi_mock_driver::array::Settings::numbered_nodes(1000);
    })
    .await;
    for number in 0..20 {
        client
            .attach(&format!("vol-{number}"), "node-999", &Default::default())
            .await
            .unwrap();
    }
    let Some(browser) = Browser::open(&url(&server, "volumes")).await else {
        return;
    };
    browser
        .until("document.querySelector('#panel-volumes').innerText.includes('1–50 of 10000 volumes')")
        .await;
    assert_eq!(
        browser
            .run("return document.querySelectorAll('#panel-volumes tbody tr').length")
            .await,
        50
    );
    browser.run("[...document.querySelectorAll('#panel-volumes button')].find((b) => b.textContent === 'Next').click()").await;
    browser
        .until("document.querySelector('#panel-volumes').innerText.includes('51–100 of 10000 volumes')")
        .await;
    browser.click("#panel-volumes input[type=search]").await;
    browser.press("vol-7777").await;
    browser
        .until("document.querySelector('#panel-volumes').innerText.includes('1–1 of 1 volumes')")
        .await;

    browser.click("#tab-nodes").await;
    browser
        .until("document.querySelector('#panel-nodes').innerText.includes('of 1000 nodes')")
        .await;
    browser.click("#panel-nodes input[type=search]").await;
    browser.press("node-999").await;
    browser
        .until("document.querySelector('#panel-nodes').innerText.includes('and 12 more')")
        .await;
    browser
        .until("document.querySelector('#counts').innerText.includes('10,000')")
        .await;
    browser.close().await;
}

#[tokio::test]
async fn page_adapts_to_narrow_screens_and_color_scheme() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 5).await;
    // Every table has a row.
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-1", "node-2"))
        .await
        .unwrap();
    let rule = json!({"id": "a-rule-with-a-long-name", "match": {"method": "Controller*", "volume": "vol-*"},
        "action": {"delay": "1ms", "code": "RESOURCE_EXHAUSTED"}, "times": 3});
    client.put_fault(&rule).await.unwrap();
    client
        .put_backend_fault(&json!({"id": "absent", "type": "device-absent", "volume": "vol-4"}))
        .await
        .unwrap();
    let group = GroupSnapshotNew {
        name: "g".to_owned(),
        sources: vec!["vol-0".to_owned(), "vol-1".to_owned()],
        ..GroupSnapshotNew::default()
    };
    client.create_group_snapshot(&group).await.unwrap();
    client
        .change_node("node-1", &mk_unhealthy_storage("a cable is loose"))
        .await
        .unwrap();
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    browser
        .until("document.querySelector('#panel-nodes tbody tr')")
        .await;
    let tools = browser.driver.cdp();
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        tools.send_raw("Emulation.setEmulatedMedia", media).await.unwrap();
        // Each pair of text and background must have a contrast of at least 4.5 to 1.
        let poor = browser.run(CONTRAST).await;
        assert_eq!(poor, json!([]), "{scheme}");
        backgrounds.push(
            browser
                .run("return getComputedStyle(document.body).backgroundColor")
                .await,
        );
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    let narrow = json!({"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": true});
    tools
        .send_raw("Emulation.setDeviceMetricsOverride", narrow)
        .await
        .unwrap();
    browser
        .until("document.documentElement.scrollWidth <= innerWidth")
        .await;
    for panel in PANELS {
        browser.click(&format!("#tab-{panel}")).await;
        let of_panel =
            |selector: &str| format!("[...document.querySelectorAll('#panel-{panel} {selector}')]");
        let rows = format!(
            "{}.every((body) => body.rows.length && getComputedStyle(body.rows[0].cells[0]).display === 'flex')",
            of_panel("tbody")
        );
        let fits = format!(
            "{}.every((e) => e.scrollWidth <= e.clientWidth)",
            of_panel(".scroll")
        );
        browser
            .until(&format!(
                "!document.querySelector('#panel-{panel}').hidden && document.documentElement.scrollWidth <= innerWidth && {rows} && {fits}"
            ))
            .await;
        assert_eq!(browser.run(CONTRAST).await, json!([]), "{panel}");
    }
    browser.close().await;
}

/// A change of a node that makes its storage unhealthy.
fn mk_unhealthy_storage(message: &str) -> NodeChange {
    NodeChange {
        health: Some(vec![StorageHealthIssue {
            status: StorageSeverity::Degraded,
            reason: "Cable".to_owned(),
            message: message.to_owned(),
            capability: None,
        }]),
        ..NodeChange::default()
    }
}

#[tokio::test]
async fn rows_have_one_line_and_titles_where_text_is_cut_off() {
    const NODE: &str = "a-node-with-a-name-of-so-many-letters-that-no-column-can-show-it.example.com";
    let (server, client) = Server::start_on_tcp(|_, settings| {
        settings.initial_volumes = 1;
        settings.array.nodes = csi_mock_driver::array::Settings::numbered_nodes(30);
    })
    .await;
    let new = VolumeNew {
        name: "shared".to_owned(),
        access_mode: Some("MULTI_NODE_MULTI_WRITER".to_owned()),
        ..VolumeNew::default()
    };
    let shared = client.create_volume(&new).await.unwrap().id;
    let attach = Attach {
        access_mode: Some("MULTI_NODE_MULTI_WRITER".to_owned()),
        ..Attach::default()
    };
    for number in 0..30 {
        client
            .attach(&shared, &format!("node-{number}"), &attach)
            .await
            .unwrap();
    }
    let node = NodeNew {
        id: NODE.to_owned(),
        limit: None,
        topology: None,
    };
    client.register_node(&node).await.unwrap();
    let message = "a cable is loose ".repeat(20);
    client
        .change_node(NODE, &mk_unhealthy_storage(&message))
        .await
        .unwrap();
    // Explicit nulls are fields that are not set.
    let rule = json!({"id": "long", "match": {"method": "ControllerPublishVolume", "volume": "vol-*", "node": "node-*", "bytes-above": null,
        "probability": null}, "action": {"code": "RESOURCE_EXHAUSTED", "after-messages": null, "exit": null}, "times": null});
    client.put_fault(&rule).await.unwrap();
    let big = json!({"id": "big", "match": {"method": "CreateVolume", "bytes-above": "1Gi"}, "action": {"code": "OUT_OF_RANGE"}});
    client.put_fault(&big).await.unwrap();
    let quota = json!({"id": "q", "type": "quota", "volumes": 100, "bytes": null});
    client.put_backend_fault(&quota).await.unwrap();
    let Some(browser) = Browser::open(&url(&server, "nodes")).await else {
        return;
    };
    let sentence = "ControllerPublishVolume of volume vol-* for node node-* fails with RESOURCE_EXHAUSTED.";
    // (panel, the start of the row's key, cell, text)
    let table = [
        ("nodes", NODE, "th", NODE),
        ("storage", NODE, "th", NODE),
        ("storage", NODE, ".wide", &message),
        ("faults", "long", ".sentence", sentence),
        (
            "faults",
            "big",
            ".sentence",
            "CreateVolume for more than 1Gi fails with OUT_OF_RANGE.",
        ),
    ];
    for (panel, key, cell, text) in table {
        browser.click(&format!("#tab-{panel}")).await;
        let row = format!("document.querySelector('#panel-{panel} tr[data-key=\"{key}\"]')");
        browser.until(&row).await;
        let shown = browser
            .run(&format!(
                "const [row, cell] = [{row}, {row}.querySelector('{cell}')]; \
                 (cell.firstElementChild ?? cell).dispatchEvent(new Event('mouseover', {{bubbles: true}})); \
                 const button = row.querySelector('td.acts button:last-child').offsetHeight; \
                 return [cell.textContent, row.offsetHeight < 1.6 * button, cell.scrollWidth <= cell.clientWidth || cell.title === cell.textContent]"
            ))
            .await;
        assert_eq!(shown, json!([text, true, true]), "{panel} {cell}");
    }
    let quota = "document.querySelector('#panel-faults tr[data-key=\"q\"]')?.innerText.includes('beyond 100 volumes.')";
    browser.until(quota).await;
    browser.click("[aria-label='YAML of q']").await;
    browser
        .until("document.querySelector('#panel-faults tr.detail pre')?.textContent.startsWith('backend-faults:\\n- id: q\\n')")
        .await;

    last_chip_comes_into_view(&browser, &shared).await;
    browser.close().await;
}

/// The last chip of a long strip comes into view with the focus.
async fn last_chip_comes_into_view(browser: &Browser, shared: &str) {
    browser.click("#tab-volumes").await;
    let strip = format!("document.querySelector('#panel-volumes tr[data-key=\"{shared}\"] .strip')");
    browser
        .until(&format!("{strip}?.scrollWidth > {strip}?.clientWidth"))
        .await;
    browser.run(&format!("{strip}.lastChild.focus()")).await;
    browser
        .until(&format!(
            "{strip}.lastChild.getBoundingClientRect().right <= {strip}.getBoundingClientRect().right + 3"
        ))
        .await;
}

/// Enters a value in a field of the form that adds a fault.
async fn fill(browser: &Browser, label: &str, value: &str) {
    let field = format!(
        "[...document.querySelectorAll('.fault label')].find((l) => l.checkVisibility() && l.firstChild.textContent === '{label}').lastChild"
    );
    browser
        .run(&format!(
            "const field = {field}; field.value = '{value}'; \
             for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, {{bubbles: true}}))"
        ))
        .await;
}

/// Until `window.release()`, the page gets no response of `/scripts`.
const HOLD_RESPONSES_OF_SCRIPTS: &str = "const real = window.fetch; \
    const released = new Promise((resolve) => { window.release = resolve; }); \
    window.fetch = async (path, request) => { const response = await real(path, request); \
    if (String(path).endsWith('/scripts')) { await released; window.answered = true; } return response; }";

#[tokio::test]
async fn form_adds_faults_that_the_driver_has_checked() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let Some(browser) = Browser::open(&url(&server, "faults")).await else {
        return;
    };
    let check = "document.querySelector('#fault-check').textContent";
    let add = "document.querySelector('.fault button.main')";
    let valid = format!("{check} === 'Valid.' && !{add}.disabled");
    browser.until(&valid).await;

    // A condition that can never hold is refused while the user types.
    fill(&browser, "Method", "CreateVolume").await;
    fill(&browser, "Node", "node-1").await;
    browser
        .until(&format!("{check}.includes('match.node') && {add}.disabled"))
        .await;
    fill(&browser, "Method", "ControllerPublishVolume").await;
    fill(&browser, "At most", "3").await;
    browser.until(&valid).await;
    assert_eq!(
        client.faults().await.unwrap().rules,
        [],
        "a check changes nothing"
    );
    let row = "document.querySelector('#panel-faults tr[data-key=\"fault-1\"]')";
    let sentence = "ControllerPublishVolume for node node-1 fails with RESOURCE_EXHAUSTED, at most 3 times.";
    browser.click(".fault button.main").await;
    browser
        .until(&format!("{row}?.innerText.includes('{sentence}')"))
        .await;
    let rule = json!({"id": "fault-1", "match": {"method": "ControllerPublishVolume", "node": "node-1"},
        "action": {"code": "RESOURCE_EXHAUSTED"}, "times": 3});
    assert_eq!(client.faults().await.unwrap().rules[0].rule, rule);
    browser.click("[aria-label='YAML of fault-1']").await;
    let yaml = "document.querySelector('#panel-faults tr.detail pre')?.textContent";
    browser
        .until(&format!(
            "{yaml}?.includes('match: {{method: ControllerPublishVolume, node: node-1}}')"
        ))
        .await;

    fill(&browser, "Fault of", "backend-fault").await;
    fill(&browser, "Type", "node-limit").await;
    browser.until(&format!("{check}.includes('limit')")).await;
    fill(&browser, "limit", "3").await;
    browser.until(&valid).await;
    // The list shows the fault before the form has the response.
    browser.run(HOLD_RESPONSES_OF_SCRIPTS).await;
    browser.click(".fault button.main").await;
    browser
        .until(
            "document.querySelector('#panel-faults').innerText.includes('at most 3 volumes to node node-1')",
        )
        .await;
    assert!(client.backend_faults().await.unwrap()[0].enabled);

    // Text that was typed stays when the list changes.
    browser
        .run("document.querySelector('#fault-yaml').select()")
        .await;
    browser.run("document.querySelector('#fault-yaml').focus()").await;
    browser
        .press("- {id: typed, match: {method: Probe}, action: {pretend: NOT_FOUND")
        .await;
    browser.until(&format!("{check}.includes('YAML')")).await;
    browser.run("window.release()").await;
    browser.until("window.answered").await;
    client
        .put_fault(&json!({"id": "fault-3", "match": {"method": "Probe"}, "action": {"delay": "1ms"}}))
        .await
        .unwrap();
    browser
        .until("document.querySelector('#panel-faults tr[data-key=\"fault-3\"]')")
        .await;
    browser.run("document.querySelector('#fault-yaml').focus()").await;
    browser.press("}}").await;
    browser.until(&valid).await;
    browser.click(".fault button.main").await;
    browser
        .until("document.querySelector('#panel-faults tr[data-key=\"typed\"]')")
        .await;

    // The browser logs the refusals.
    let complaints = browser.complaints().await;
    assert!(
        complaints.iter().all(|text| text.contains("400")),
        "{complaints:?}"
    );
    browser.close().await;
}

#[tokio::test]
async fn form_leaves_validation_to_the_driver() {
    let (server, _client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let Some(browser) = Browser::open(&url(&server, "faults")).await else {
        return;
    };
    let check = "document.querySelector('#fault-check').textContent";
    let add = "document.querySelector('.fault button.main')";
    let valid = format!("{check} === 'Valid.' && !{add}.disabled");
    browser.until(&valid).await;

    // Nothing cannot be added.
    browser
        .run("const yaml = document.querySelector('#fault-yaml'); yaml.value = ' '; yaml.dispatchEvent(new Event('input'))")
        .await;
    browser.until(&format!("{check} === '' && {add}.disabled")).await;

    // Only the driver validates: the browser knows neither fractions of a percent nor fields that are hidden.
    fill(&browser, "Fault of", "rule").await;
    fill(&browser, "Which calls", "probability").await;
    fill(&browser, "Number", "0.5").await;
    browser.until(&valid).await;
    browser.click(".fault button.main").await;
    let rare = "document.querySelector('#panel-faults').innerText.includes('0.5 % of the calls')";
    browser.until(rare).await;
    fill(&browser, "Which calls", "all").await;
    fill(&browser, "Id", "all").await;
    browser.until(&valid).await;
    browser.click(".fault button.main").await;
    browser
        .until("document.querySelector('#panel-faults tr[data-key=\"all\"]')")
        .await;
    // The browser logs the refusals.
    let complaints = browser.complaints().await;
    assert!(
        complaints.iter().all(|text| text.contains("400")),
        "{complaints:?}"
    );
    browser.close().await;
}

#[tokio::test]
async fn device_faults_are_switched_on_a_volume_and_added_by_the_form() {
    if !verdict::are_met(&[verdict::Requirement::Fuse]) {
        return;
    }
    let (server, client) = Server::start_on_tcp(|_, settings| {
        settings.initial_volumes = 2;
        settings.node_id = Some("node-0".to_owned());
        settings.node.devices = csi_mock_driver::node::device::Choice::Loop;
    })
    .await;
    let Some(browser) = Browser::open(&url(&server, "volumes")).await else {
        return;
    };
    let row = "document.querySelector('#panel-volumes tr[data-key=\"vol-1\"]')";
    browser.until(row).await;
    browser.click("[aria-label='More about vol-1']").await;
    browser
        .until("document.querySelector('[aria-label=\"I/O errors of vol-1\"]')")
        .await;
    for (enabled, health) in [(true, "io-error-vol-1"), (false, "healthy")] {
        browser.click("[aria-label='I/O errors of vol-1']").await;
        browser
            .until(&format!("{row}.innerText.includes('{health}')"))
            .await;
        let rules = client.faults().await.unwrap().rules;
        assert_eq!((rules.len(), rules[0].enabled), (1, enabled));
    }

    browser.click("#tab-faults").await;
    let sentence = "Every I/O of volume vol-1 fails with EIO.";
    browser
        .until(&format!(
            "document.querySelector('#panel-faults .sentence')?.innerText === '{sentence}'"
        ))
        .await;
    for (label, value) in [
        ("Fault of", "io"),
        ("Operation", "write"),
        ("File", "*.db"),
        ("The I/O", "torn"),
        ("Bytes", "4"),
    ] {
        fill(&browser, label, value).await;
    }
    let check = "document.querySelector('#fault-check').textContent";
    browser.until(&format!("{check} === 'Valid.'")).await;
    browser.click(".fault button.main").await;
    let sentence = "Every write of the file *.db succeeds with its first 4 bytes on the disk only.";
    browser
        .until(&format!(
            "[...document.querySelectorAll('#panel-faults .sentence')].some((cell) => cell.innerText === '{sentence}')"
        ))
        .await;
    let rules = client.faults().await.unwrap().rules;
    assert_eq!(rules.len(), 2);
}

#[tokio::test]
async fn volumes_are_in_natural_order_and_their_devices_can_be_broken() {
    let (server, client) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 12).await;
    let Some(browser) = Browser::open(&url(&server, "volumes")).await else {
        return;
    };
    browser
        .until("document.querySelectorAll('#panel-volumes tbody tr').length === 12")
        .await;
    let order = browser
        .run("return [...document.querySelectorAll('#panel-volumes tbody tr')].map((row) => row.dataset.key)")
        .await;
    let expected: Vec<String> = (0..12).map(|number| format!("vol-{number}")).collect();
    assert_eq!(order, json!(expected));

    let row = "document.querySelector('#panel-volumes tr[data-key=\"vol-2\"]')";
    browser.click("[aria-label='More about vol-2']").await;
    browser
        .until("document.querySelector('[aria-label=\"no device of vol-2\"]')")
        .await;
    for (enabled, health) in [
        (true, "device-absent"),
        (false, "healthy"),
        (true, "device-absent"),
    ] {
        browser.click("[aria-label='no device of vol-2']").await;
        browser
            .until(&format!("{row}.innerText.includes('{health}')"))
            .await;
        let faults = client.backend_faults().await.unwrap();
        assert_eq!((faults.len(), faults[0].enabled), (1, enabled));
    }
    browser.click("[aria-label='vol-2 DEGRADED']").await;
    browser
        .until(&format!("{row}.innerText.includes('DEGRADED')"))
        .await;
    let health = client.volume("vol-2").await.unwrap().health;
    assert_eq!(health[0].status, Severity::Degraded);

    // Only DEGRADED is switched, other issues stay.
    let issues = [Severity::Degraded, Severity::Inaccessible].map(|status| HealthIssue {
        status,
        reason: "Cable".to_owned(),
        message: "a cable is loose".to_owned(),
    });
    let change = VolumeChange {
        health: Some(issues.to_vec()),
        ..VolumeChange::default()
    };
    client.change_volume("vol-2", &change).await.unwrap();
    browser
        .until(&format!("{row}.innerText.includes('INACCESSIBLE')"))
        .await;
    browser.click("[aria-label='vol-2 DEGRADED']").await;
    let degraded = "document.querySelector('[aria-label=\"vol-2 DEGRADED\"]').ariaChecked";
    browser.until(&format!("{degraded} === 'false'")).await;
    let health = client.volume("vol-2").await.unwrap().health;
    assert_eq!(health, issues[1..]);

    // The switch of one volume shows a fault of several ones, and does not end it.
    for (id, pattern) in [("some", json!("vol-?")), ("all", Value::Null)] {
        let fault = json!({"id": id, "type": "wrong-device", "volume": pattern});
        client.put_backend_fault(&fault).await.unwrap();
        let switch = "document.querySelector('[aria-label=\"wrong device of vol-2\"]')";
        browser
            .until(&format!(
                "{switch}.disabled && {switch}.ariaChecked === 'true' && {switch}.title === '{id}' && {row}.innerText.includes('wrong-device')"
            ))
            .await;
        let other = "document.querySelector('#panel-volumes tr[data-key=\"vol-10\"]')";
        let reaches_other = id == "all";
        browser
            .until(&format!(
                "{other}.innerText.includes('wrong-device') === {reaches_other}"
            ))
            .await;
        client.remove_backend_fault(id).await.unwrap();
        browser
            .until(&format!("!{switch}.disabled && {switch}.ariaChecked === 'false'"))
            .await;
    }
    browser.close().await;
}

#[tokio::test]
async fn dashboard_of_a_proxy_opens_on_its_calls() {
    let behind = Server::start().await;
    let (server, _client) =
        Server::start_on_tcp(|_, settings| settings.proxy_to = Some(behind.path("csi.sock"))).await;
    let Some(browser) = Browser::open(&format!("http://{}/", server.admin_address())).await else {
        return;
    };
    browser
        .until("location.hash === '#calls' && document.querySelector('#panel-calls').innerText.includes('0 calls')")
        .await;
    let offered = browser
        .run("return [...document.querySelectorAll('[role=tab]')].filter((tab) => tab.checkVisibility()).map((tab) => tab.textContent)")
        .await;
    assert_eq!(offered, json!(["Calls", "Faults", "Capabilities"]));
    // Nor does the form offer faults that need an array.
    browser.click("#tab-faults").await;
    browser
        .until("document.querySelector('#fault-check').textContent === 'Valid.'")
        .await;
    fill(&browser, "Fault of", "backend-fault").await;
    let types = browser
        .run("return [...[...document.querySelectorAll('.fault label')].find((l) => l.checkVisibility() && l.firstChild.textContent === 'Type').lastChild.options].filter((option) => !option.hidden).map((option) => option.value)")
        .await;
    assert_eq!(
        types,
        json!([
            "node-gone",
            "node-limit",
            "read-only",
            "busy",
            "slow-node",
            "node-lock",
            "rate-limit",
            "tracking-off",
            "tokens-expired"
        ])
    );
    assert_eq!(
        browser
            .run("return document.querySelector('#failed').textContent")
            .await,
        ""
    );
    browser.close().await;
}
