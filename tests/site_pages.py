"""Names of the book's pages, for every test that goes through them."""

PAGES = [
    "book/intro",
    "book/how_to_read",
    "book/notation",
    "book/glossary",
    "book/teaching",
    "book/architecture",
    "book/references",
    "book/statistics",
    "notebooks/00_inside_a_vit",
    "notebooks/01_phase_curves",
    "notebooks/02_information_scrambling",
    "notebooks/03_recoverability",
    "notebooks/04_vfusion",
    "notebooks/05_vfusion_ablations",
    "notebooks/06_shift",
    "notebooks/07_semantic_diffusion",
    "notebooks/08_entmax_attention",
    "notebooks/09_scorecard",
    "notebooks/data_appendix",
    "notebooks/zoo_appendix",
]
