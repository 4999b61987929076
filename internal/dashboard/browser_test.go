package dashboard_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// tab is a page in a real browser. What the page writes to its console as a
// warning or an error fails the test.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	messages []chromedp.ConsoleMessage
}

// newTab starts a browser of its own, or skips where there is none.
func newTab(t *testing.T) *tab {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("no chromium: run  apt-get install chromium")
		}
		t.Skip("no chromium: install it to run the tests in a browser")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, stopTab := chromedp.NewContext(ctx)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); stopTab() })
	b := &tab{t: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.messages = append(b.messages, m)
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, m := range b.messages {
			if m.Type == "debug" {
				continue
			}
			t.Errorf("the console says: %v (%s)", m, m.URL)
		}
	})
	return b
}

// within bounds one step in the browser.
const within = 30 * time.Second

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func run[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func eval[T any](b *tab, js string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](js))
}

// until waits for a condition in the page.
func (b *tab) until(js string) {
	b.t.Helper()
	var err error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		// A page that is being left gives an error; the next one is asked again.
		if _, err = chromedp.Run(b.ctx, chromedp.Poll[bool](js, chromedp.WithPollingTimeout(within))); err == nil {
			return
		}
	}
	b.t.Fatalf("it never was true that %s: %v", js, err)
}

// view makes the window as wide as asked, and the system light or dark.
func (b *tab) view(width int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: width, Height: 800, DeviceScaleFactor: 2, Mobile: width < 500,
		})
		if err != nil {
			return err
		}
		_, err = cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// shot keeps a picture of the whole page: in $TALLYGATE_SHOTS, or where go test
// -artifacts puts things.
func (b *tab) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("TALLYGATE_SHOTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	b.until(`document.fonts.status === "loaded"`)
	png := run(b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
