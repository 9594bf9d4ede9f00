package main

import (
	"os"
	"path/filepath"
	"strings"
)

// storeFlags are the options of every command that opens the store.
type storeFlags struct {
	Store     string `help:"Where jobs are kept: sqlite:PATH, postgres://… or redis://…. Default: flexiq.db in the data folder." env:"FLEXIQ_STORE"`
	StoreFile string `help:"File whose first line is the --store URL, for one with a password." type:"existingfile" env:"FLEXIQ_STORE_FILE"`
	PGSchema  string `name:"pg-schema" help:"Schema of the tables in PostgreSQL." default:"flexiq" env:"FLEXIQ_PG_SCHEMA"`
	DataDir   string `help:"Folder of the store, the embedded NATS server and the credentials file. Default: $$XDG_DATA_HOME/flexiq." env:"FLEXIQ_DATA_DIR"`
}

// complete finds the data folder and the store's URL: given, in a file, or in
// the data folder.
func (c *storeFlags) complete() error {
	if c.DataDir == "" {
		dir, err := defaultDataDir()
		if err != nil {
			return err
		}
		c.DataDir = dir
	}
	switch {
	case c.Store != "" && c.StoreFile != "":
		return &usageError{"--store-file", "must not be given together with --store"}
	case c.StoreFile != "":
		b, err := os.ReadFile(c.StoreFile)
		if err != nil {
			return &usageError{"--store-file", err.Error()}
		}
		first, _, _ := strings.Cut(string(b), "\n")
		if c.Store = strings.TrimSpace(first); c.Store == "" {
			return &usageError{"--store-file", "the first line of " + c.StoreFile + " is empty"}
		}
	case c.Store == "":
		c.Store = "sqlite:" + filepath.Join(c.DataDir, "flexiq.db")
	}
	return nil
}
