package config

import (
	"context"
	"os"
	"testing"
	"time"
)

func TestAChangedFileIsLoadedAndABrokenOneIsRefusedAsAWhole(t *testing.T) {
	path := write(t, "default_policy: a\npolicies: {a: {unlimited: true}}\n")
	c, err := Load(path, env())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	type loaded struct {
		c   *Config
		err error
	}
	nudge, results, ended := make(chan struct{}), make(chan loaded, 10), make(chan error, 1)
	go func() {
		ended <- c.Watch(ctx, nudge, func(c *Config, err error) { results <- loaded{c, err} })
	}()
	next := func() loaded {
		t.Helper()
		select {
		case l := <-results:
			return l
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was loaded")
			return loaded{}
		}
	}
	replace := func(content string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	replace("default_policy: b\npolicies: {b: {unlimited: true}}\n")
	if got := next(); got.err != nil || got.c.DefaultPolicy != "b" {
		t.Fatalf("the changed file: %+v", got)
	}
	replace("default_policy: c\npolicies: {b: {}}\n")
	nudge <- struct{}{}
	if got := next(); got.err == nil || got.c != nil {
		t.Fatalf("the broken file: %+v", got)
	}
	nudge <- struct{}{} // nothing has changed, but somebody asks
	if got := next(); got.err == nil {
		t.Fatalf("the broken file again: %+v", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
