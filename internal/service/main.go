package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/config"
)

// Program is what main runs, in a form that tests can run too.
type Program func(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error

// Main runs program and exits: its context ends on SIGINT or SIGTERM, an error is
// printed and is exit code 1. A second signal ends the process at once.
func Main(program Program) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from now on signals have their default effect
	err := program(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// Execute runs a command as a Program does.
func Execute(ctx context.Context, command *cobra.Command, args []string, stdout, stderr io.Writer) error {
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	command.SilenceUsage, command.SilenceErrors = true, true
	command.Version = Version()
	return command.ExecuteContext(ctx)
}

// Command returns the command of a service: run gets the configuration of --config
// and the environment. With --print-config it only prints the effective one.
func Command(name, short string, getenv func(string) string, run func(ctx context.Context, c *config.Config, stderr io.Writer) error) *cobra.Command {
	var path string
	var show bool
	command := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := config.Load(path, getenv)
			if err != nil {
				return err
			}
			if show {
				return c.Print(command.OutOrStdout())
			}
			return run(command.Context(), c, command.ErrOrStderr())
		},
	}
	ConfigFlag(command, &path, getenv)
	command.Flags().BoolVar(&show, "print-config", false, "print the effective configuration, secrets masked, and exit")
	return command
}

// ConfigFlag adds --config, by default TALLYGATE_CONFIG or else tallygate.yaml
// where that exists.
func ConfigFlag(command *cobra.Command, path *string, getenv func(string) string) {
	byDefault := getenv("TALLYGATE_CONFIG")
	if byDefault == "" {
		if _, err := os.Stat("tallygate.yaml"); !errors.Is(err, os.ErrNotExist) {
			byDefault = "tallygate.yaml"
		}
	}
	command.Flags().StringVarP(path, "config", "c", byDefault, "the configuration `file` (TALLYGATE_CONFIG)")
}
