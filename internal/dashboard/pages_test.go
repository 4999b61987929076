package dashboard_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tallygate/tallygate/internal/dashboard"
	"github.com/tallygate/tallygate/internal/usage"
)

// allPages are the pages as people meet them.
var allPages = []struct{ name, path string }{
	{"overview", "/"},
	{"overview-30d", "/?span=30d&tz=Europe/Berlin"},
	{"overview-dates", "/?from=2026-03-10T00:00&to=2026-03-12T00:00"},
	{"tokens", "/tokens"},
	{"token", "/token?t=acme-production&span=6h"},
	{"token-resource", "/token?t=acme-production&span=6h&resource=search"},
	{"policies", "/policies"},
	{"audit", "/audit"},
}

func TestPagesHaveNoAccessibilityFaultsAndFitEveryScreen(t *testing.T) {
	axe, err := os.ReadFile("testdata/axe/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t, filled(t))
	b := newTab(t)
	for _, p := range allPages {
		for _, v := range []struct {
			scheme string
			width  int64
		}{{"light", 1280}, {"dark", 375}} {
			scheme, width := v.scheme, v.width
			{
				b.view(width, scheme)
				b.do(chromedp.Navigate(server.URL + p.path))
				b.shot(fmt.Sprintf("%s-%s-%d", p.name, scheme, width))
				if over := eval[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
					t.Errorf("%s is %d px too wide for a screen of %d", p.name, over, width)
				}
				// The tools of a browser's own protocol are not subject to the page's policy.
				eval[bool](b, string(axe)+"; true")
				faults := run(b, chromedp.Evaluate[[]string](
					`axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r =>
						r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target + " " + n.failureSummary)))`,
					chromedp.EvalAwaitPromise))
				for _, f := range faults {
					t.Errorf("%s, %s, %d px: %s", p.name, scheme, width, f)
				}
			}
		}
	}
}

// text returns what an element shows.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`document.querySelector(%q).innerText`, selector))
}

func TestAPersonFindsATokenAndItsUsage(t *testing.T) {
	server := serve(t, filled(t))
	b := newTab(t)
	b.view(1280, "light")
	b.do(chromedp.Navigate(server.URL+"/"), chromedp.KeyEvent("/"))
	b.until(`document.activeElement.matches("[data-jump]")`)
	eval[bool](b, `document.activeElement.value = "", true`) // the protocol types what the page has taken
	b.do(chromedp.KeyEvent(`<b>"bold" & {braced}</b>`), chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("h1").innerText === '<b>"bold" & {braced}</b>'`)

	b.do(chromedp.Navigate(server.URL+"/tokens"), chromedp.Click(chromedp.CSS(`thead a[href*="sort=-last"]`)))
	b.until(`document.querySelector('th[aria-sort="descending"]').innerText.startsWith("Last use")`)
	b.do(chromedp.Click(chromedp.CSS(`a.token[href*="acme-production"]`)))
	b.until(`document.querySelector("h1").innerText === "acme-production"`)
	all := b.text(`[data-figure="admitted"]`)
	b.do(chromedp.Click(chromedp.CSS(`#by-resource a[href*="resource=search"]`)))
	b.until(`location.search.includes("resource=search") && document.querySelector(".chip") !== null`)
	if one := b.text(`[data-figure="admitted"]`); one == all || one == "0" {
		t.Errorf("search alone shows %s of %s", one, all)
	}
	b.do(chromedp.Click(chromedp.CSS(".chip")))
	b.until(`!location.search.includes("resource")`)
	if again := b.text(`[data-figure="admitted"]`); again != all {
		t.Errorf("all resources show %s, before it was %s", again, all)
	}
	b.do(chromedp.Click(chromedp.CSS(`.segments a[href*="span=7d"]`)))
	b.until(`document.querySelector(".segments [aria-current]").innerText === "7d"`)
}

func TestAChartTellsWhatItsTableTells(t *testing.T) {
	server := serve(t, filled(t))
	b := newTab(t)
	b.view(1280, "light")
	b.do(chromedp.Navigate(server.URL + "/?from=2026-03-12T00:00&to=2026-03-12T12:00"))
	table := eval[string](b, `[...document.querySelectorAll("#chart-data tbody tr")].map(r =>
		r.cells[0].textContent + " " + r.cells[1].textContent + " admitted, " + r.cells[2].textContent + " rejected").reverse().join("\n")`)
	columns := eval[string](b, `[...document.querySelectorAll("[data-chart] title")].map(t =>
		t.textContent.replace(/ – \d\d:\d\d:/, "")).join("\n")`)
	if table == "" || strings.Join(strings.Fields(table), " ") != strings.Join(strings.Fields(columns), " ") {
		t.Errorf("the table says\n%s\nthe chart says\n%s", table, columns)
	}
	eval[bool](b, `{ const g = document.querySelectorAll("[data-chart] g")[20].getBoundingClientRect();
		window.at = [(g.left + g.right) / 2, g.bottom - 5]; true }`)
	at := eval[[]float64](b, `window.at`)
	b.do(chromedp.MouseEvent("mouseMoved", at[0], at[1]))
	b.until(`document.querySelector(".tip")?.innerText.includes("admitted")`)
	b.shot("tooltip")
}

func TestTheChosenThemeStays(t *testing.T) {
	server := serve(t, filled(t))
	b := newTab(t)
	b.view(1280, "light")
	b.do(chromedp.Navigate(server.URL + "/token?t=mobile:ios&span=7d"))
	page := func() string { return eval[string](b, `getComputedStyle(document.body).backgroundColor`) }
	light := page()
	b.do(chromedp.Click(chromedp.CSS(`.theme [value="dark"]`)))
	b.until(`document.documentElement.dataset.theme === "dark"`)
	if page() == light {
		t.Error("dark is as light as light")
	}
	if got := eval[string](b, `location.pathname + location.search`); got != "/token?t=mobile:ios&span=7d" {
		t.Errorf("choosing a theme leads to %s", got)
	}
	b.do(chromedp.Navigate(server.URL + "/policies"))
	if page() == light {
		t.Error("the next page is light again")
	}
	b.do(chromedp.Click(chromedp.CSS(`.theme [value="system"]`)))
	b.until(`document.documentElement.dataset.theme === undefined`)
	if page() != light {
		t.Error("as the system is not light")
	}
}

func TestAnOpenPageUpdatesItself(t *testing.T) {
	store := filled(t)
	server := serve(t, store)
	b := newTab(t)
	b.view(1280, "light")
	b.do(chromedp.Navigate(server.URL + "/token?t=ops@example.com&span=1h"))
	b.until(`document.querySelector(".live.on") !== null`)
	b.do(chromedp.Click(chromedp.CSS("#chart-data summary"))) // what a person opened stays open
	before := b.text(`[data-figure="ops"]`)
	eval[bool](b, `window.same = true`)
	record := usage.Record{
		Key:    usage.Key{Token: parse(t, "ops@example.com"), Resource: "search", Minute: now.Unix() / 60},
		Totals: usage.Totals{Admitted: 50_000, Last: now.Unix()},
	}
	if err := store.Ingest(context.Background(), usage.Batch{Records: []usage.Record{record}}); err != nil {
		t.Fatal(err)
	}
	eval[bool](b, `document.activeElement.blur(), true`)
	b.until(fmt.Sprintf(`document.querySelector('[data-figure="ops"]').innerText !== %q`, before))
	if !eval[bool](b, `window.same && document.querySelector("#chart-data").open`) {
		t.Error("the page was loaded anew, or closed what was open")
	}
}

func TestSigningInWithABrowser(t *testing.T) {
	server := serve(t, filled(t), func(o *dashboard.Options) { o.Credentials = people })
	b := newTab(t)
	b.view(375, "dark")
	b.do(chromedp.Navigate(server.URL + "/tokens?sort=-last"))
	b.until(`location.pathname === "/sign-in"`)
	b.shot("sign-in")
	b.do(chromedp.SendKeys(chromedp.CSS("#credential"), "look-only"+kb.Enter))
	b.until(`location.pathname + location.search === "/tokens?sort=-last"`)
	b.do(chromedp.Click(chromedp.CSS(".who button")))
	b.until(`location.pathname === "/sign-in"`)
}

func TestPagesWorkWithoutScripts(t *testing.T) {
	server := serve(t, filled(t))
	began := time.Now()
	for _, p := range allPages {
		answer, body := get(t, server.URL+p.path)
		if answer.StatusCode != 200 || !strings.Contains(body, "</html>") {
			t.Errorf("%s: %s", p.path, answer.Status)
		}
	}
	t.Logf("%d pages in %v", len(allPages), time.Since(began))
}
