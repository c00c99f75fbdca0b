"""The paper, figure by figure: each module makes one figure or table, and says whether the paper's claim holds."""
