package indexer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/usage"
)

func recent(t *testing.T, store *history.Store) {
	t.Helper()
	now := time.Now().Unix()
	err := store.Ingest(context.Background(), usage.Batch{
		Records: []usage.Record{
			{Key: usage.Key{Token: "old", Minute: noon}, Totals: usage.Totals{Admitted: 100, Last: noon * 60}},
			{Key: usage.Key{Token: "busy", Minute: now/60 - 1}, Totals: usage.Totals{Admitted: 7, Last: now - 60}},
		},
		Events: []usage.Event{{ID: "1", Token: "busy", At: now * 1000, Kind: "token.blocked", Actor: "ops"}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTopOfLateCountsOnlyThat(t *testing.T) {
	store := openSQLite(t)
	recent(t, store)
	out, err := run("top", "--since", "10m", "--server", listen(t, store, indexer.APIOptions{}))
	if err != nil || !strings.Contains(out, "busy") || strings.Contains(out, "old") {
		t.Errorf("%v\n%s", err, out)
	}
}

// screens ends the context when the second one was shown.
type screens struct {
	bytes.Buffer
	shown  int
	cancel context.CancelFunc
}

func (s *screens) Write(p []byte) (int, error) {
	if s.shown++; s.shown == 2 {
		s.cancel()
	}
	return s.Buffer.Write(p)
}

func TestWatchShowsItAgainUntilItIsStopped(t *testing.T) {
	store := openSQLite(t)
	recent(t, store)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &screens{cancel: cancel}
	root := &cobra.Command{Use: "indexer", SilenceErrors: true}
	root.AddCommand(indexer.Commands()...)
	root.SetOut(out)
	root.SetArgs([]string{"top", "--watch", "1ms", "--server", listen(t, store, indexer.APIOptions{})})
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\x1b[H\x1b[2J"); n != 2 || strings.Count(out.String(), "busy") != 2 {
		t.Errorf("%d screens: %q", n, out.String())
	}
}

func TestCommandsSendTheReadToken(t *testing.T) {
	server := listen(t, openSQLite(t), indexer.APIOptions{ReadTokens: []string{fmt.Sprintf("%x", sha256.Sum256([]byte("secret")))}})
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run("top", "--server", server, "--bearer-file", file); err != nil {
		t.Error(err)
	}
	if _, err := run("top", "--server", server); err == nil || !strings.Contains(err.Error(), "read token") {
		t.Errorf("without a token: %v", err)
	}
}

// administer runs an admin command on the history at a path.
func administer(path string, args ...string) (string, error) {
	root := &cobra.Command{Use: "indexer", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(indexer.AdminCommands(func(ctx context.Context) (*history.Store, error) {
		return history.Connect(ctx, "sqlite:"+path)
	})...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

func TestAdminCommands(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "history.db")
	check := func(want string, wrong bool, args ...string) {
		t.Helper()
		out, err := administer(path, args...)
		if (err != nil) != wrong || !strings.Contains(out+fmt.Sprint(err), want) {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	check("the schema is at version", false, "migrate")
	store, err := history.Open(context.Background(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	recent(t, store)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	check("1 events, the chain holds, head ", false, "audit", "verify")
	check("busy,,", false, "export", "--from", "0", "--format", "csv")
	check("2 files written, 0 were there", false, "export", "--from", "2025-02-19T00:00:00Z", "--to", "2025-02-21T00:00:00Z", "--out", filepath.Join(folder, "out")+"/")
	check("0 files written, 2 were there", false, "export", "--from", "2025-02-19T00:00:00Z", "--to", "2025-02-21T00:00:00Z", "--out", filepath.Join(folder, "out")+"/")
	check("", false, "export", "--from", "0", "--step", "1h", "--out", filepath.Join(folder, "usage.jsonl"))
	if _, err := os.Stat(filepath.Join(folder, "usage.jsonl")); err != nil {
		t.Error(err)
	}
	check("required flag", true, "export")
	check("--from", true, "export", "--from", "soon")
	check("--format", true, "export", "--from", "0", "--out", "x.xml")
	check("by the minute, hour and day", true, "export", "--from", "0", "--step", "2h")
	check("required flag", true, "erase", "busy")
	check("unknown token", true, "erase", "stranger", "--actor", "me", "--reason", "asked")
	check("its usage is now that of erased-", false, "erase", "busy", "--actor", "me", "--reason", "asked")
	check("2 events, the chain holds", false, "audit", "verify")
	check("the schema is at version 1", false, "migrate", "--to", "1")
}
