//! A headless Chromium, driven by its debugging protocol over two pipes.
//!
//! Why not a crate for it: those need a websocket, an async runtime and the types of the whole
//! protocol. Over pipes a message is JSON that ends with a zero byte.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::PATIENCE;

/// The programs that are tried, in order.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Counts layout shifts, and is run before each page.
const WATCH: &str = "window.shifts = []; new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
        const at = entry.sources.map((one) => one.node?.id || one.node?.parentElement?.id
            || one.node?.className || one.node?.nodeName);
        window.shifts.push(`${entry.value} of ${at}`);
    }
}).observe({ type: 'layout-shift', buffered: true });";

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    session: String,
    sent: u64,
    /// What the page has logged as an error, and its exceptions.
    errors: VecDeque<String>,
    home: PathBuf,
}

/// The path of a Chromium. Prints a line if there is none.
fn program() -> Option<&'static str> {
    let version = |name: &&&str| Command::new(name).arg("--version").output();
    let is_there = |name: &&&str| version(name).is_ok_and(|output| output.status.success());
    let found = PROGRAMS.iter().find(|name| is_there(name)).copied();
    if found.is_none() {
        println!("skipped: Chromium is not installed, so the page is not tested");
    }
    found
}

impl Browser {
    /// `None` where no Chromium is installed.
    pub(crate) fn start() -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let program = program()?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let home = format!("corewheel-page-{}-{number}", std::process::id());
        let home = env::temp_dir().join(home);
        let mut command = Command::new("sh");
        // The browser reads commands from descriptor 3 and writes replies to descriptor 4.
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", program]);
        let options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --disable-background-networking --no-first-run --hide-scrollbars \
            --remote-debugging-pipe";
        command.args(options.split_whitespace());
        command.arg(format!("--user-data-dir={}", home.display()));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is a shell");
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            // The thread ends with the browser, or when the test drops the receiver.
            stdout.split(0).map_while(Result::ok).try_for_each(|message| {
                sender.send(serde_json::from_slice(&message).expect("a message is JSON"))
            })
        });
        let (session, errors) = (String::new(), VecDeque::new());
        let mut browser = Self { process, stdin, messages, session, sent: 0, errors, home };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        attached["sessionId"].as_str().expect("it is attached").clone_into(&mut browser.session);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": WATCH }));
        browser.resize(1_280, 900);
        Some(browser)
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        write!(stdin, "{message}\0").expect("the browser runs");
        loop {
            let mut reply = self.messages.recv_timeout(PATIENCE).expect(method);
            if reply["id"] == self.sent {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].take();
            }
            self.note(&reply);
        }
    }

    /// Keeps an event that tells of an error.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let is_error = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind)
            }
            Some("Log.entryAdded") => params["entry"]["level"] == "error",
            _ => false,
        };
        if is_error {
            self.errors.push_back(params.to_string());
        }
    }

    /// Opens the page of a server, and waits until it shows numbers.
    pub(crate) fn show(&mut self, address: SocketAddr) {
        self.open(&format!("http://{address}/"));
        self.wait("document.querySelector('main') && !document.querySelector('main').hidden");
    }

    fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.wait(&format!("location.href === {url:?} && document.readyState === 'complete'"));
    }

    /// Leaves the page, before its server ends.
    pub(crate) fn leave(&mut self) {
        self.open("about:blank");
    }

    /// The value of an expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().expect("it is a text").to_owned()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait(&mut self, expression: &str) {
        let start = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            if start.elapsed() > PATIENCE {
                let seen = self.text("body");
                panic!("not true in {PATIENCE:?}: {expression}\n{seen}");
            }
            thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Waits until the text of an element contains this.
    pub(crate) fn wait_for_text(&mut self, selector: &str, text: &str) {
        self.wait(&format!("document.querySelector({selector:?}).textContent.includes({text:?})"));
    }

    /// Waits until the page says this warning, or state, first.
    pub(crate) fn wait_for_mark(&mut self, mark: &str) {
        let text = "document.querySelector('#attention .mark').textContent";
        self.wait(&format!("{text}.endsWith({mark:?})"));
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let mut size = json!({ "width": width, "height": height });
        (size["deviceScaleFactor"], size["mobile"]) = (json!(1), json!(false));
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key }));
        }
    }

    /// A picture of the window as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let params = json!({ "format": "png", "optimizeForSpeed": false });
        let picture = self.call("Page.captureScreenshot", &params);
        let data = picture["data"].as_str().expect("it is a text");
        BASE64_STANDARD.decode(data).expect("it is in base64")
    }

    /// Asserts that nothing was logged as an error, and that nothing has moved.
    pub(crate) fn check_calm(&mut self) {
        let shifts = self.eval("window.shifts");
        assert_eq!(shifts, json!([]), "the layout has shifted");
        assert!(self.errors.is_empty(), "{:?}", self.errors);
    }

    /// Forgets the errors that were logged.
    pub(crate) fn take_errors(&mut self) -> Vec<String> {
        self.errors.drain(..).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium ends when its pipe does; it is killed if it does not.
        drop(self.stdin.take());
        let start = Instant::now();
        while start.elapsed().as_secs() < 5 && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.home);
    }
}
